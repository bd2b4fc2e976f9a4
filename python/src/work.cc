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

/// Tensors to release, and the mutex that guards them. Never destroyed, as threads outlive main().
struct Graveyard {
  static Graveyard& instance() {
    static auto* const graveyard = new Graveyard;
    return *graveyard;
  }
  std::mutex mutex;
  std::vector<std::vector<at::Tensor>*> left;
};

/// Runs the handlers of signals that came; throws what one of them raises.
void check_signals() {
  if (::gettid() != ::getpid() || Py_IsInitialized() == 0) return;  // only that thread runs them
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
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
            if (holds_gil()) {
              delete last;
              return;
            }
            const std::lock_guard lock(Graveyard::instance().mutex);
            Graveyard::instance().left.push_back(last);
          }};
}

void bury_tensors() {
  std::vector<std::vector<at::Tensor>*> left;
  {
    const std::lock_guard lock(Graveyard::instance().mutex);
    left.swap(Graveyard::instance().left);
  }
  for (const auto* const tensors : left) delete tensors;
}

std::exception_ptr as_torch_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return std::make_exception_ptr(c10::DistBackendError(
        {__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, e.what()));
  } catch (...) {
    return error;
  }
}

StartedWork::StartedWork(int rank, Started started, std::shared_ptr<Completions> completions)
    : c10d::Work(rank, started.type, started.title, started.inputs),
      started_(std::move(started)),
      completions_(std::move(completions)) {}

bool StartedWork::isCompleted() {
  for (const ronde::Work& part : started_.parts) {
    if (!part.done()) return false;
  }
  settle();
  return true;
}

int StartedWork::sourceRank() const {
  TORCH_CHECK(c10d::isP2POp(opType_), "sourceRank() is for a recv, not for ",
              c10d::opTypeToString(opType_));
  return started_.parts.front().source();
}

std::vector<at::Tensor> StartedWork::result() {
  TORCH_CHECK(isCompleted(), "Work needs to be completed before result(): call wait() first");
  return started_.outputs;
}

void StartedWork::synchronize() {
  for (const c10::Device& device : devices_of(*started_.tensors)) {
    void* const stream =
        c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
    for (const ronde::Work& part : started_.parts) part.wait_on(stream);
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
  const bool has_limit = timeout > kNoTimeout;
  const auto end = std::chrono::steady_clock::now() + (has_limit ? timeout : milliseconds(0));
  for (const ronde::Work& part : started_.parts) {
    for (;;) {
      milliseconds slice = kSlice;
      if (has_limit) {
        const auto left = std::chrono::ceil<milliseconds>(end - std::chrono::steady_clock::now());
        slice = std::clamp(left, milliseconds(0), kSlice);
      }
      try {
        if (part.wait_for(slice)) break;
      } catch (const Error&) {
        break;  // settle() reads it
      }
      check_signals();
      if (has_limit && std::chrono::steady_clock::now() >= end) {
        C10_THROW_ERROR(DistBackendError, "Timed out waiting " + std::to_string(timeout.count()) +
                                              "ms for " + c10d::opTypeToString(opType_) +
                                              " to complete");
      }
    }
  }
}

void StartedWork::settle() {
  std::exception_ptr error;
  for (const ronde::Work& part : started_.parts) {
    const std::exception_ptr of_part = part.error();
    if (of_part && !error) error = as_torch_error(of_part);
  }
  try {
    if (!error && started_.check) started_.check();
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
  if (error) {
    future->setError(error);
  } else {
    future->markCompleted(c10::IValue(started_.outputs));
  }
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
  const std::vector<ronde::Work>& parts = work->started_.parts;
  const ronde::Work last = parts.empty() ? ronde::Work() : parts.back();
  std::uint64_t token = 0;
  {
    const std::lock_guard lock(mutex_);
    token = ++last_token_;
    pending_[token] = std::move(work);
    if (token == 1) std::thread([self = shared_from_this()] { self->serve(); }).detach();
  }
  last.on_done([self = shared_from_this(), token] { self->done(token); });
}

void Completions::done(std::uint64_t token) noexcept {
  {
    const std::lock_guard lock(mutex_);
    done_.push_back(token);
  }
  changed_.notify_one();
}

void Completions::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

void Completions::serve() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are the program's threads'
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    changed_.wait(lock, [&] { return !done_.empty() || (closed_ && pending_.empty()); });
    --idle_;
    if (done_.empty()) return;
    const auto found = pending_.find(done_.front());
    done_.pop_front();
    c10::intrusive_ptr<StartedWork> work = std::move(found->second);
    pending_.erase(found);
    if (idle_ == 0) std::thread([self = shared_from_this()] { self->serve(); }).detach();
    lock.unlock();
    work->wait_for_parts(kNoTimeout);  // the last is done, and the others are soon
    work->settle();
    work->complete_future();
    work.reset();
    bury_tensors();
    lock.lock();
    if (closed_ && pending_.empty()) changed_.notify_all();
  }
}

}  // namespace ronde::c10d_backend
