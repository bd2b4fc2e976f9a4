// SPDX-License-Identifier: Apache-2.0
#include "api/src/hosted_runtime.h"

#include <utility>

#include "core/src/base/caller.h"
#include "core/src/base/text.h"
#include "ronde/error.h"
#include "ronde/log.h"

namespace ronde {

void HostedRuntime::begin() {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::Fresh && phase_ != Phase::ShutDown) {
    throw UsageError(
        "ronde::init() was called twice: call it once, before everything else, and ask "
        "ronde::is_initialized() where you are not sure. A further group of ranks in this process "
        "is a ronde::World");
  }
  phase_ = Phase::Initializing;
  failure_in_finalize_ = nullptr;
}

void HostedRuntime::fail_to_start() {
  const std::lock_guard lock(mutex_);
  phase_ = Phase::Fresh;
}

void HostedRuntime::publish(std::unique_ptr<Runtime> runtime, std::unique_ptr<Observer> observer) {
  const std::lock_guard lock(mutex_);
  runtime_ = std::move(runtime);
  observer_ = std::move(observer);
  fork_depth_.store(fork_depth());
  phase_ = Phase::Ready;
}

bool HostedRuntime::is_of_parent() const noexcept {
  const int depth = fork_depth_.load();
  return depth != kNotStarted && depth != fork_depth();
}

void HostedRuntime::expect_own_process(std::string_view function) const {
  if (is_of_parent()) throw error_after_fork(std::string(function));
}

/// Returns what the first hook that failed has thrown.
std::exception_ptr HostedRuntime::run_shutdown_hooks() {
  std::exception_ptr problem;
  const std::lock_guard lock(shutdown_hooks_mutex_);
  for (const auto& [number, hook] : shutdown_hooks_) {
    try {
      hook();
    } catch (...) {
      if (!problem) problem = std::current_exception();
    }
  }
  return problem;
}

void HostedRuntime::add_shutdown_hook(std::uint64_t number, std::function<void()> hook) {
  const std::lock_guard lock(shutdown_hooks_mutex_);
  shutdown_hooks_.emplace(number, std::move(hook));
}

void HostedRuntime::remove_shutdown_hook(std::uint64_t number) {
  if (is_of_parent()) return;
  const std::lock_guard lock(shutdown_hooks_mutex_);
  shutdown_hooks_.erase(number);
}

std::exception_ptr HostedRuntime::shutdown(std::optional<std::chrono::nanoseconds> limit) {
  if (!is_there()) {
    if (const auto failure = take_failure_in_finalize()) std::rethrow_exception(failure);
    return nullptr;
  }
  if (is_loop_thread()) throw error_of_shutdown_in_callback();
  const std::exception_ptr problem_of_hook = run_shutdown_hooks();
  Runtime* runtime = nullptr;
  Observer* observer = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::Ready) {
      if (problem_of_hook) std::rethrow_exception(problem_of_hook);
      return nullptr;
    }
    // The other functions still work: callbacks of operations that finish now may call them.
    phase_ = Phase::ShuttingDown;
    runtime = runtime_.get();
    observer = observer_.get();
  }
  try {
    observer->shutdown(limit);
  } catch (...) {
    report_.note_end(false, runtime->failure());
    retire(Phase::ShutDown);
    throw;
  }
  const std::exception_ptr failure = runtime->failure();
  report_.note_end(true, failure);
  retire(Phase::ShutDown);
  if (problem_of_hook) std::rethrow_exception(problem_of_hook);
  return failure;
}

void HostedRuntime::end_in_finalize() noexcept {
  int rank = -1;
  LogLevel level = LogLevel::Error;
  {
    std::unique_lock lock(mutex_);
    // Another thread that is in shutdown() still needs MPI.
    if (!is_loop_thread()) unused_.wait(lock, [this] { return phase_ != Phase::ShuttingDown; });
    if (runtime_ != nullptr) {
      rank = runtime_->topology().rank;
      level = parse_log_level(runtime_->config().log_level);
    }
  }
  try {
    shutdown();
  } catch (...) {
    const std::string begin = "MPI_Finalize() has called ronde::shutdown(), which failed: ";
    Logger(level, rank).error(begin + exception_text());
    const std::lock_guard lock(mutex_);
    failure_in_finalize_ = std::current_exception();
  }
}

std::exception_ptr HostedRuntime::take_failure_in_finalize() noexcept {
  if (is_of_parent()) return nullptr;
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_in_finalize_, nullptr);
}

bool HostedRuntime::leave(const std::string& why, Then then) noexcept {
  if (is_of_parent()) return false;
  Runtime* runtime = nullptr;
  Observer* observer = nullptr;
  bool destroys = false;
  {
    const std::lock_guard lock(mutex_);
    if (runtime_ == nullptr) return false;
    runtime = runtime_.get();
    observer = observer_.get();
    // A thread that is in shutdown() destroys the Runtime itself.
    destroys = then == Then::Destroy && phase_ == Phase::Ready;
    if (destroys) phase_ = Phase::ShuttingDown;
    ++uses_;  // so that no other thread destroys them
  }
  const int rank = runtime->topology().rank;
  const int size = runtime->topology().size;
  const bool fails_others = runtime->leave(why) && size > 1;
  const LogLevel log_level = parse_log_level(runtime->config().log_level);
  report_.note_end(false, runtime->failure());
  observer->end();
  end_use();
  if (fails_others && then == Then::Destroy) {
    const Logger log(log_level, rank, name_);
    log.error(
        name_.empty()
            ? "this process ends without ronde::shutdown(): the group fails for all ranks"
            : "this rank leaves without World::shutdown(): the world fails for all its ranks");
  }
  if (destroys) retire(Phase::ShutDown);
  return fails_others;
}

void HostedRuntime::retire(Phase next) noexcept {
  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<Observer> observer;  // destroyed first
  std::unique_lock lock(mutex_);
  phase_ = next;
  unused_.notify_all();
  fork_depth_.store(kNotStarted);
  runtime = std::move(runtime_);
  observer = std::move(observer_);
  const bool unused = unused_.wait_for(lock, kLongestUse, [this] { return uses_ == 0; });
  lock.unlock();
  if (!unused) {
    // A thread that was stopped inside a call (exit() from there) still points at it.
    static_cast<void>(observer.release());
    static_cast<void>(runtime.release());
  }
}

int HostedRuntime::rank() const noexcept {
  const std::lock_guard lock(mutex_);
  return runtime_ == nullptr ? -1 : runtime_->topology().rank;
}

bool HostedRuntime::is_there() const noexcept {
  if (is_of_parent()) return false;
  const std::lock_guard lock(mutex_);
  return runtime_ != nullptr;
}

void HostedRuntime::record_stall(const std::vector<StalledOperation>& operations) {
  const std::lock_guard lock(mutex_);
  if (observer_) observer_->note_stall(operations);
}

void HostedRuntime::require_not_there(std::string_view function) const {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::Fresh || phase_ == Phase::ShutDown) {
    return;
  }
  throw UsageError(std::string(function) +
                   " was called after ronde::init(): it is for the next init, call it before");
}

/// Called with mutex_ held.
void HostedRuntime::throw_not_ready(std::string_view function) const {
  if (!name_.empty()) {
    throw NotInitializedError(std::string(function) + " was called for world '" + name_ +
                              "' after its shutdown()");
  }
  if (phase_ == Phase::ShutDown) {
    throw NotInitializedError(std::string(function) +
                              " was called after ronde::shutdown(), or after MPI_Finalize(), which "
                              "calls it: this rank has left the group; move the call before");
  }
  throw NotInitializedError(
      std::string(function) +
      " was called before ronde::init(): call ronde::init() first, at the start of main");
}

HostedRuntime::Use::Use(HostedRuntime& owner, std::string_view function,
                        std::shared_ptr<HostedRuntime> keeps_owner)
    : keeps_owner_(std::move(keeps_owner)), owner_(owner) {
  owner_.expect_own_process(function);
  const std::lock_guard lock(owner_.mutex_);
  if (owner_.runtime_ == nullptr) {
    owner_.throw_not_ready(function);
  }
  runtime_ = owner_.runtime_.get();
  observer_ = owner_.observer_.get();
  ++owner_.uses_;
}

HostedRuntime::Use::~Use() {
  owner_.end_use();
}

void HostedRuntime::end_use() noexcept {
  const std::lock_guard lock(mutex_);
  if (--uses_ == 0) {
    unused_.notify_all();
  }
}

}  // namespace ronde
