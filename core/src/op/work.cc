// SPDX-License-Identifier: Apache-2.0
#include "ronde/work.h"
#include "core/src/base/monotonic_clock.h"

#include "core/src/base/caller.h"
#include "core/src/base/text.h"
#include "core/src/op/work_state.h"
#include "ronde/error.h"

namespace ronde {

WorkState::WorkState(std::string name, std::weak_ptr<WaitHelper> engine,
                     std::shared_ptr<Logger> log)
    : name_(std::make_unique<const std::string>(std::move(name))),
      engine_(std::move(engine)),
      log_(std::move(log)) {}

WorkState::WorkState(SpecPtr spec, std::weak_ptr<WaitHelper> engine, std::shared_ptr<Logger> log)
    : spec_(std::move(spec)), engine_(std::move(engine)), log_(std::move(log)) {}

WorkState::~WorkState() {
  if (!error_ || error_read_ || fork_depth() != fork_depth_) return;
  try {
    std::rethrow_exception(error_);
  } catch (const GroupError&) {  // the engine has logged the failure, once for all operations
  } catch (...) {
    log_->warning(name() + " failed and nobody asked: " + exception_text());
  }
}

void WorkState::set_queued(std::shared_ptr<const DeviceEvent> event) {
  {
    const std::lock_guard lock(mutex_);
    event_ = std::move(event);
    stage_.store(Stage::Queued, std::memory_order_release);
  }
  changed_.notify_all();
}

void WorkState::complete(std::exception_ptr error, bool contributed) {
  std::vector<std::function<void()>> callbacks;
  {
    const std::lock_guard lock(mutex_);
    if (done()) return;
    error_ = std::move(error);
    contributed_ = contributed;
    callbacks.swap(callbacks_);
    stage_.store(Stage::Done, std::memory_order_release);
  }
  changed_.notify_all();
  for (const auto& callback : callbacks) {
    try {
      callback();
    } catch (...) {
      log_->error("a callback of " + name() + " threw, which it must not: " + exception_text());
    }
  }
}

void WorkState::expect_own_process(const char* function) const {
  if (fork_depth() != fork_depth_) throw error_after_fork(name() + ": " + function);
}

bool WorkState::ask() noexcept {
  if (done()) return true;
  // In a bucket, only lazy operations can be delayed.
  if (!bucket()) return false;
  if (const auto engine = engine_.lock()) engine->help(*this, Stage::Done, WaitHelper::kAsks);
  return false;
}

bool WorkState::contributed() const {
  const std::lock_guard lock(mutex_);
  return contributed_;
}

std::exception_ptr WorkState::error() {
  std::unique_lock lock(mutex_);
  error_read_ = error_read_ || error_ != nullptr;
  const std::exception_ptr error = error_;
  lock.unlock();
  const auto engine = error ? engine_.lock() : nullptr;
  if (engine) engine->on_error_read(error);
  return error;
}

void WorkState::expect_success(const char* asked) {
  if (stage() == Stage::Pending) {
    throw UsageError(name() + ": " + asked + " was called while it is pending; wait() first");
  }
  if (const std::exception_ptr failed = error()) std::rethrow_exception(failed);
}

void WorkState::wait(Stage goal, TimePoint deadline) {
  awaited_.store(true, std::memory_order_relaxed);
  if (const auto engine = engine_.lock()) {
    engine->help(*this, goal, deadline);
  } else {
    block(goal, deadline);
  }
}

void WorkState::block(Stage goal, TimePoint deadline) {
  if (stage() >= goal) return;
  std::unique_lock lock(mutex_);
  const auto is_reached = [this, goal] { return stage() >= goal; };
  if (deadline == TimePoint::max()) {
    changed_.wait(lock, is_reached);
  } else {
    changed_.wait_until(lock, deadline, is_reached);
  }
}

void WorkState::wait_on(void* stream) {
  wait(Stage::Queued, TimePoint::max());
  if (const std::exception_ptr failed = error()) std::rethrow_exception(failed);
  std::unique_lock lock(mutex_);
  const std::shared_ptr<const DeviceEvent> event = event_;
  lock.unlock();
  if (event) event->order(stream);
}

bool WorkState::wait_until(TimePoint deadline) {
  wait(Stage::Done, deadline);
  if (!done()) return false;
  if (const std::exception_ptr failed = error()) std::rethrow_exception(failed);
  return true;
}

void WorkState::on_done(std::function<void()> callback) {
  ask();
  {
    const std::lock_guard lock(mutex_);
    if (!done()) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  const EngineScope scope;  // on another rank the callback may run there
  callback();
}

namespace {

WorkState& usable(const std::shared_ptr<WorkState>& state, const char* function) {
  state->expect_own_process(function);
  return *state;
}

}  // namespace

bool Work::done() const {
  return !state_ || usable(state_, "done()").ask();
}

void Work::wait() const {
  if (state_) usable(state_, "wait()").wait_until(TimePoint::max());
}

void Work::wait_on(void* stream) const {
  if (state_) usable(state_, "wait_on()").wait_on(stream);
}

bool Work::wait_for(std::chrono::nanoseconds duration) const {
  if (!state_) return true;
  WorkState& state = usable(state_, "wait_for()");
  const auto now = MonotonicClock::now();
  // nanoseconds::max() is a way to say "for ever", and no time to add to another.
  const bool is_for_ever = duration > TimePoint::max() - now;
  return state.wait_until(is_for_ever ? TimePoint::max() : now + duration);
}

std::exception_ptr Work::error() const {
  return state_ ? usable(state_, "error()").error() : nullptr;
}

bool Work::contributed() const {
  return !state_ || usable(state_, "contributed()").contributed();
}

bool Work::digests_agree() const {
  return !state_ || usable(state_, "digests_agree()").digests_agree();
}

std::vector<std::int64_t> Work::received_splits() const {
  return state_ ? usable(state_, "received_splits()").received_splits()
                : std::vector<std::int64_t>();
}

int Work::last_rank() const {
  return state_ ? usable(state_, "last_rank()").last_rank() : -1;
}

int Work::source() const {
  return state_ ? usable(state_, "source()").source() : -1;
}

void Work::on_done(std::function<void()> callback) const {
  if (state_) {
    usable(state_, "on_done()").on_done(std::move(callback));
  } else {
    callback();
  }
}

}  // namespace ronde
