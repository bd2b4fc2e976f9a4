// SPDX-License-Identifier: Apache-2.0
#include "python/src/work.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "ronde/error.h"

namespace ronde::c10d_backend {
namespace {

using std::chrono::milliseconds;

/// How long a wait on Python's main thread goes on before it looks for signals.
constexpr milliseconds kSlice{100};

bool holds_gil() {
  return Py_IsInitialized() != 0 && PyGILState_GetThisThreadState() != nullptr &&
         PyGILState_Check() != 0;
}

/// What to release, and the mutex that guards it. Never destroyed, as threads outlive main().
struct Graveyard {
  static Graveyard& instance() {
    static auto* const graveyard = new Graveyard;
    return *graveyard;
  }
  std::mutex mutex;
  std::vector<std::shared_ptr<void>> left;
};

void leave(std::shared_ptr<void> remains) {
  const std::lock_guard lock(Graveyard::instance().mutex);
  Graveyard::instance().left.push_back(std::move(remains));
}

/// Runs the handlers of signals that came; throws what one of them raises.
void check_signals() {
  if (::gettid() != ::getpid() || Py_IsInitialized() == 0) return;  // only that thread runs them
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

/// Whether it is done, with an error or without, after at most `slice`.
bool ends_within(const ronde::Work& work, milliseconds slice) {
  try {
    return work.wait_for(slice);
  } catch (const Error&) {
    return true;
  }
}

std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_cpu()) devices.push_back(tensor.device());
  }
  return devices;
}

}  // namespace

Tensors keep(std::vector<at::Tensor> tensors) {
  return {new std::vector<at::Tensor>(std::move(tensors)), [](std::vector<at::Tensor>* last) {
            std::shared_ptr<void> owner(last, std::default_delete<std::vector<at::Tensor>>());
            if (!holds_gil()) leave(std::move(owner));
          }};
}

void bury_tensors() {
  std::vector<std::shared_ptr<void>> left;
  const std::lock_guard lock(Graveyard::instance().mutex);
  left.swap(Graveyard::instance().left);
}

c10::DistBackendError torch_error(const std::exception& error) {
  return {{__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, error.what()};
}

void await(const Work& work) {
  while (!work.wait_for(kSlice)) check_signals();
}

StartedWork::StartedWork(int rank, Started started, std::shared_ptr<Completions> completions)
    : c10d::Work(rank, started.type, started.title, started.inputs),
      started_(std::move(started)),
      completions_(std::move(completions)) {}

bool StartedWork::isCompleted() {
  for (const Part& part : started_.parts) {
    if (!part.work.done()) return false;
  }
  settle();
  return true;
}

int StartedWork::sourceRank() const {
  TORCH_CHECK(c10d::isP2POp(opType_), "sourceRank() is for a recv, not for ",
              c10d::opTypeToString(opType_));
  return started_.parts.front().work.source();
}

std::vector<at::Tensor> StartedWork::result() {
  TORCH_CHECK(isCompleted(), "Work needs to be completed before result(): call wait() first");
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
  return started_.outputs;
}

void StartedWork::synchronize() {
  for (const c10::Device& device : devices_of(*started_.tensors)) {
    void* const stream =
        c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
    for (const Part& part : started_.parts) part.work.wait_on(stream);
  }
}

bool StartedWork::wait(milliseconds timeout) {
  std::optional<pybind11::gil_scoped_release> no_gil;
  if (holds_gil()) no_gil.emplace();
  wait_for_parts(timeout);
  settle();
  complete_future();
  bury_tensors();
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
  synchronize();
  return true;
}

/// Returns once all are done, with an error or without.
void StartedWork::wait_for_parts(milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto end = timeout > kNoTimeout ? Clock::now() + timeout : Clock::time_point::max();
  const auto left = [end] {
    return std::clamp(std::chrono::ceil<milliseconds>(end - Clock::now()), kNoTimeout, kSlice);
  };
  for (const Part& part : started_.parts) {
    while (!ends_within(part.work, left())) {
      check_signals();
      TORCH_CHECK_WITH(DistBackendError, left() > kNoTimeout, "Timed out waiting ", timeout.count(),
                       "ms for ", c10d::opTypeToString(opType_), " to complete");
    }
  }
}

void StartedWork::settle() {
  std::exception_ptr error;
  try {
    for (const Part& part : started_.parts) {
      if (const std::exception_ptr of_part = part.work.error()) std::rethrow_exception(of_part);
      if (part.check) part.check(part.work);
    }
  } catch (const Error& e) {
    error = std::make_exception_ptr(torch_error(e));
  } catch (...) {
    error = std::current_exception();
  }
  std::function<void()> end;
  {
    const std::lock_guard lock(mutex_);
    if (completed_) return;
    completed_ = true;
    exception_ = error;
    end.swap(recordFunctionEndCallback_);
  }
  cv_.notify_all();
  if (end) end();
}

void StartedWork::complete_future() {
  std::unique_lock lock(mutex_);
  if (!completed_ || !future_ || future_completed_) return;
  future_completed_ = true;
  const auto future = future_;
  const std::exception_ptr error = exception_;
  lock.unlock();
  error ? future->setError(error) : future->markCompleted(c10::IValue(started_.outputs));
}

c10::intrusive_ptr<c10::ivalue::Future> StartedWork::getFuture() {
  isCompleted();  // then no thread is needed, which there is none of once the group is destroyed
  std::unique_lock lock(mutex_);
  if (future_) return future_;
  const auto future = future_ = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), devices_of(started_.outputs));
  const bool is_completed = completed_;
  lock.unlock();
  if (is_completed) {
    complete_future();
  } else {
    completions_->add(c10::intrusive_ptr<StartedWork>::unsafe_reclaim_from_nonowning(this));
  }
  return future;
}

void Completions::add(c10::intrusive_ptr<StartedWork> work) {
  const std::vector<Part>& parts = work->started_.parts;
  const ronde::Work last = parts.empty() ? ronde::Work() : parts.back().work;
  {
    const std::lock_guard lock(mutex_);
    ++pending_;
    if (!std::exchange(serves_, true)) start_thread();
  }
  // The callback's owner is the engine, which must not release the work.
  last.on_done([self = shared_from_this(), box = std::make_shared<c10::intrusive_ptr<StartedWork>>(
                                               std::move(work))] { self->done(std::move(*box)); });
}

void Completions::done(c10::intrusive_ptr<StartedWork> work) {
  const std::lock_guard lock(mutex_);
  done_.push_back(std::move(work));
  changed_.notify_one();
}

void Completions::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void Completions::start_thread() {
  std::thread([self = shared_from_this()] { self->serve(); }).detach();
}

void Completions::serve() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are the program's threads'
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    changed_.wait(lock, [&] { return !done_.empty() || (closed_ && pending_ == 0); });
    --idle_;
    if (done_.empty()) return;
    c10::intrusive_ptr<StartedWork> work = std::move(done_.front());
    done_.pop_front();
    --pending_;
    if (idle_ == 0) start_thread();
    lock.unlock();
    work->wait_for_parts(kNoTimeout);  // the last is done, and the others are soon
    work->settle();
    work->complete_future();
    leave(std::make_shared<c10::intrusive_ptr<StartedWork>>(std::move(work)));
    lock.lock();
    if (closed_ && pending_ == 0) changed_.notify_all();
  }
}

}  // namespace ronde::c10d_backend
