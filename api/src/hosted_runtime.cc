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
  hosted_ = std::make_unique<const Hosted>(Hosted{std::move(runtime), std::move(observer)});
  fork_depth_.store(fork_depth());
  ++living_;
  phase_ = Phase::Ready;
  usable_.store(hosted_.get());
}

// Where one lives, fork_depth() was called before, and only its first call may throw.
// NOLINTNEXTLINE(bugprone-exception-escape)
bool HostedRuntime::is_of_parent() noexcept {
  return living_.load() > 0 && fork_depth_.load() != fork_depth();
}

void HostedRuntime::expect_own_process(std::string_view function) {
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
  const Hosted* hosted = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::Ready) {
      if (problem_of_hook) std::rethrow_exception(problem_of_hook);
      return nullptr;
    }
    // The other functions still work: callbacks of operations that finish now may call them.
    phase_ = Phase::ShuttingDown;
    hosted = hosted_.get();
  }
  std::exception_ptr problem;
  try {
    hosted->observer->shutdown(limit);
  } catch (...) {
    problem = std::current_exception();
  }
  const std::exception_ptr failure = hosted->runtime->failure();
  report_.note_end(!problem, failure);
  retire(Phase::ShutDown);
  if (!problem) problem = problem_of_hook;
  if (problem) std::rethrow_exception(problem);
  return failure;
}

void HostedRuntime::end_in_finalize() noexcept {
  int rank = -1;
  LogLevel level = LogLevel::Error;
  {
    std::unique_lock lock(mutex_);
    // Another thread that is in shutdown() still needs MPI.
    if (!is_loop_thread()) unused_.wait(lock, [this] { return phase_ != Phase::ShuttingDown; });
    if (hosted_) {
      rank = hosted_->runtime->topology().rank;
      level = parse_log_level(hosted_->runtime->config().log_level);
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
  const Hosted* hosted = nullptr;
  bool destroys = false;
  {
    const std::lock_guard lock(mutex_);
    if (!hosted_) return false;
    hosted = hosted_.get();
    // A thread that is in shutdown() destroys the Runtime itself.
    destroys = then == Then::Destroy && phase_ == Phase::Ready;
    if (destroys) phase_ = Phase::ShuttingDown;
    ++uses_;  // so that no other thread destroys it
  }
  Runtime& runtime = *hosted->runtime;
  const int rank = runtime.topology().rank;
  const int size = runtime.topology().size;
  const bool fails_others = runtime.leave(why) && size > 1;
  const LogLevel log_level = parse_log_level(runtime.config().log_level);
  report_.note_end(false, runtime.failure());
  hosted->observer->end();
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
  std::unique_lock lock(mutex_);
  phase_ = next;
  unused_.notify_all();
  std::unique_ptr<const Hosted> hosted = std::move(hosted_);
  if (hosted) --living_;
  usable_.store(nullptr);
  const bool unused = unused_.wait_for(lock, kLongestUse, [this] { return uses_.load() == 0; });
  lock.unlock();
  // A thread that was stopped inside a call (exit() from there) still points at it.
  if (!unused) static_cast<void>(hosted.release());
}

int HostedRuntime::rank() const noexcept {
  const std::lock_guard lock(mutex_);
  return hosted_ ? hosted_->runtime->topology().rank : -1;
}

bool HostedRuntime::is_there() const noexcept {
  return !is_of_parent() && usable_.load() != nullptr;
}

void HostedRuntime::record_stall(const std::vector<StalledOperation>& operations) {
  const std::lock_guard lock(mutex_);
  if (hosted_) hosted_->observer->note_stall(operations);
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
  expect_own_process(function);
  ++owner_.uses_;
  hosted_ = owner_.usable_.load();
  if (hosted_ != nullptr) return;
  owner_.end_use();
  const std::lock_guard lock(owner_.mutex_);
  owner_.throw_not_ready(function);
}

HostedRuntime::Use::~Use() {
  owner_.end_use();
}

void HostedRuntime::end_use() noexcept {
  if (--uses_ > 0 || usable_.load() != nullptr) return;
  const std::lock_guard lock(mutex_);
  unused_.notify_all();
}

}  // namespace ronde
