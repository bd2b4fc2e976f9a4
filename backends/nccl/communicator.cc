// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/communicator.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

namespace ronde::nccl {
namespace {

/// How long an abort waits for a call that is about to return, and must not find freed memory. A
/// call that takes longer blocks in NCCL, which an abort ends.
constexpr std::chrono::milliseconds kGrace{10};

}  // namespace

struct BlockingCommunicator::State {
  explicit State(std::shared_ptr<const cuda::DeviceContext> of_gpu) : context(std::move(of_gpu)) {}

  void serve();
  void abort(const NcclApi& api);
  void require_open(const std::string& doing) const {
    if (stage != Stage::Open) throw Error("NCCL failed while " + doing + ": it was aborted");
  }

  const std::shared_ptr<const cuda::DeviceContext> context;
  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by mutex.
  Stage stage = Stage::Connecting;
  Communicator handle = nullptr;
  std::function<void()> next;  ///< the task that has not begun
  std::exception_ptr error;
  bool is_running = false, has_ended = false, stops = false;
};

/// The thread.
void BlockingCommunicator::State::serve() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [&] { return stops || next; });
    if (stops) return;
    std::function<void()> task = std::exchange(next, nullptr);
    is_running = true;
    lock.unlock();
    std::exception_ptr thrown;
    try {
      const cuda::Current current(*context);
      task();
    } catch (...) {
      thrown = std::current_exception();
    }
    task = nullptr;  // what it owns is destroyed before its end is seen
    lock.lock();
    error = std::move(thrown);
    is_running = false;
    has_ended = true;
    changed.notify_all();
  }
}

/// A thread of its own, which is done once it has given back its share of the context.
void BlockingCommunicator::State::abort(const NcclApi& api) {
  {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, kGrace, [&] { return !is_running; });
  }
  std::optional<cuda::Current> current;
  try {
    current.emplace(*context);
  } catch (const Error&) {
    // A GPU that has failed has none; NCCL's threads must end even so.
  }
  // The result of aborting a failed communicator is of no use.
  static_cast<void>(api.abort(handle));
}

BlockingCommunicator::BlockingCommunicator(std::shared_ptr<const NcclApi> api,
                                           std::shared_ptr<const cuda::DeviceContext> context,
                                           int size)
    : api_(std::move(api)),
      size_(size),
      state_(std::make_shared<State>(std::move(context))),
      thread_([state = state_] { state->serve(); }) {}

BlockingCommunicator::~BlockingCommunicator() {
  if (!was_abort_begun_)
    abort(Clock::now() + std::chrono::seconds(2));  // else its caller has waited for it
  if (!thread_.joinable()) return;
  is_idle(Clock::now()) ? thread_.join() : thread_.detach();
}

void BlockingCommunicator::start(std::function<void()> task) {
  const std::lock_guard lock(state_->mutex);
  // The end of one task must not be taken for that of another.
  if (state_->next || state_->is_running) throw Error("NCCL was given two tasks at once");
  state_->has_ended = false;
  if (!state_->stops) state_->next = std::move(task);
  state_->changed.notify_all();
}

bool BlockingCommunicator::poll() {
  const std::lock_guard lock(state_->mutex);
  if (state_->has_ended && state_->error) std::rethrow_exception(state_->error);
  return state_->has_ended;
}

bool BlockingCommunicator::is_idle(Clock::time_point deadline) const noexcept {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_until(lock, deadline, [&] { return !state_->is_running; });
}

void BlockingCommunicator::connect(const UniqueId& id, int rank) {
  const std::string doing = "connecting " + std::to_string(size_) + " ranks";
  CommunicatorConfig config;
  config.blocking = 1;
  Communicator made = nullptr;
  const Result result = api_->init_rank(&made, size_, id, rank, &config);
  {
    const std::lock_guard lock(state_->mutex);
    if (result == kSuccess && state_->stage == Stage::Connecting) {
      state_->handle = made;
      state_->stage = Stage::Open;
      return;
    }
    state_->stage = Stage::Aborted;
  }
  const NcclError error(*api_, api_->init_rank.symbol(), result, made, doing);
  if (made != nullptr) static_cast<void>(api_->abort(made));
  if (result != kSuccess) throw error;
  static_cast<void>(handle(doing));
}

Communicator BlockingCommunicator::handle(const std::string& doing) const {
  const std::lock_guard lock(state_->mutex);
  state_->require_open(doing);
  return state_->handle;
}

void BlockingCommunicator::check(const char* symbol, Result result,
                                 const std::string& doing) const {
  if (result == kSuccess) return;
  const std::lock_guard lock(state_->mutex);  // the handle ends with the stage
  const Communicator asked = state_->stage == Stage::Open ? state_->handle : nullptr;
  throw NcclError(*api_, symbol, result, asked, doing);
}

void BlockingCommunicator::watch(const std::string& doing) const {
  Result result = kSuccess, issued = kSuccess;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->stage == Stage::Closed) return;
    state_->require_open(doing);
    result = api_->async_error(state_->handle, &issued);
  }
  check(api_->async_error.symbol(), result, doing);
  if (issued != kInProgress) check(api_->async_error.symbol(), issued, doing);
}

void BlockingCommunicator::close() {
  const std::string doing = "closing a communicator";
  call(doing, api_->finalize, handle(doing));
  Communicator finalized = nullptr;
  {
    const std::lock_guard lock(state_->mutex);
    state_->require_open(doing);
    state_->stage = Stage::Closed;
    finalized = state_->handle;
  }
  call(doing, api_->destroy, finalized);
}

bool BlockingCommunicator::abort(Clock::time_point deadline) noexcept {
  std::function<void()> dropped;  // destroyed without the lock
  bool is_open = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stops = true;
    dropped.swap(state_->next);
    state_->changed.notify_all();
    is_open = state_->stage == Stage::Open;
    if (state_->stage != Stage::Closed) state_->stage = Stage::Aborted;
  }
  was_abort_begun_ = was_abort_begun_ || is_open;
  try {
    if (is_open) {
      std::promise<void> promise;
      aborting_ = promise.get_future();
      std::thread([state = state_, api = api_, done = std::move(promise)]() mutable {
        state->abort(*api);
        state = nullptr;
        done.set_value();
      }).detach();
    }
  } catch (const std::exception&) {
    aborting_ = {};  // without a thread the communicator stays as it is
  }
  if (!was_abort_begun_) return true;
  return aborting_.valid() && aborting_.wait_until(deadline) == std::future_status::ready;
}

}  // namespace ronde::nccl
