// SPDX-License-Identifier: Apache-2.0
#include "api/src/default_runtime.h"

#include <chrono>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "api/observe/timeline/nvtx_ranges.h"
#include "api/src/start_options.h"
#include "core/src/base/after_fork.h"
#include "core/src/base/exception_text.h"
#include "core/src/base/thread_scope.h"
#include "ronde/error.h"
#include "ronde/log.h"

namespace ronde {
namespace {

// Uses are short, once a Runtime has ended. One that does not end belongs to a thread that will
// never run again.
constexpr std::chrono::seconds kLongestUse{2};

constexpr std::string_view kInitTwice =
    "ronde::init() was called twice: call it once, before everything else, and ask "
    "ronde::is_initialized() where you are not sure";

/// The former handler of std::terminate(); written once.
std::terminate_handler next_terminate = nullptr;

/// An exception that nobody catches ends the process; the other ranks hear of it before. It may
/// have been thrown under a lock, as nothing is unwound then: so this thread does not wait for
/// long.
void leave_and_terminate() {
  if (std::current_exception() != nullptr) {
    const auto told = std::make_shared<std::promise<void>>();
    std::thread([told, why = "an uncaught exception ends it: " + exception_text()] {
      DefaultRuntime::instance().leave_for_good(why);
      told->set_value();
    }).detach();
    told->get_future().wait_for(kLongestUse);
  }
  if (next_terminate != nullptr) next_terminate();
  std::abort();
}

}  // namespace

DefaultRuntime& DefaultRuntime::instance() {
  static auto* const kInstance = new DefaultRuntime();
  return *kInstance;
}

void DefaultRuntime::init(const InitOptions& options) {
  expect_own_process("ronde::init()");
  begin_init();
  run_report_.note(RunBoard::kStarting);
  try {
    StartOptions start;
    {
      const std::lock_guard lock(mutex_);
      const auto on_stall = [this, of_program = on_stall_](const auto& operations) {
        note_stall(operations);
        if (of_program) of_program(operations);
      };
      start = load_start_options(options, registered_, on_stall, [this] { end_in_finalize(); });
    }
    const std::string& problem = run_report_.problem();
    if (!problem.empty()) start.warnings.push_back(problem);
    start.runtime.on_event = run_report_.counting_steps(nvtx_ranges());
    std::unique_ptr<DumpSignal> signal = wanted_signal(start.runtime.config);
    is_guest_ = start.is_guest;
    const std::shared_ptr<const ReadGpu> read_gpu = start.read_gpu;
    std::unique_ptr<Runtime> runtime = start_runtime(std::move(start));
    auto observer = std::make_unique<Observer>(*runtime, std::move(signal), *read_gpu);
    run_report_.note(RunBoard::kStarted);
    publish(std::move(runtime), std::move(observer));
  } catch (...) {
    const std::lock_guard lock(mutex_);
    phase_ = Phase::Fresh;
    throw;
  }
  try {
    run_hooks();
  } catch (...) {
    retire(Phase::Fresh);
    throw;
  }
}

void DefaultRuntime::begin_init() {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::Fresh && phase_ != Phase::ShutDown) {
    throw UsageError(std::string(kInitTwice));
  }
  phase_ = Phase::Initializing;
  failure_in_finalize_ = nullptr;
}

void DefaultRuntime::publish(std::unique_ptr<Runtime> runtime, std::unique_ptr<Observer> observer) {
  const std::lock_guard lock(mutex_);
  if (!leaves_at_exit_) {
    // Registered after the Runtime started, so it runs before the statics are destroyed that the
    // libraries below it made while starting.
    const auto end = [](int status, void*) { instance().end_at_exit(status); };
    leaves_at_exit_ = on_exit(end, nullptr) == 0;
  }
  if (!is_guest_) {
    const std::terminate_handler before = std::set_terminate(&leave_and_terminate);
    if (before != &leave_and_terminate) next_terminate = before;
  }
  runtime_ = std::move(runtime);
  observer_ = std::move(observer);
  fork_depth_.store(fork_depth());
  phase_ = Phase::Ready;
}

void DefaultRuntime::run_hooks() {
  std::vector<Hook> hooks;
  Runtime* runtime = nullptr;
  {
    const std::lock_guard lock(mutex_);
    hooks = hooks_;
    runtime = runtime_.get();
  }
  for (const Hook& hook : hooks) {
    hook(*runtime);
  }
}

/// In a child of fork(): Note [After fork] in core/src/base/after_fork.h.
bool DefaultRuntime::is_of_parent() const noexcept {
  const int depth = fork_depth_.load();
  return depth != kNotStarted && depth != fork_depth();
}

/// `function` is called.
void DefaultRuntime::expect_own_process(std::string_view function) const {
  if (is_of_parent()) throw error_after_fork(std::string(function));
}

/// What the first that has failed has thrown.
std::exception_ptr DefaultRuntime::run_shutdown_hooks() {
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

std::uint64_t DefaultRuntime::add_shutdown_hook(std::function<void()> hook) {
  const std::lock_guard lock(shutdown_hooks_mutex_);
  shutdown_hooks_.emplace(next_shutdown_hook_, std::move(hook));
  return next_shutdown_hook_++;
}

void DefaultRuntime::remove_shutdown_hook(std::uint64_t number) {
  if (is_of_parent()) return;
  const std::lock_guard lock(shutdown_hooks_mutex_);
  shutdown_hooks_.erase(number);
}

std::exception_ptr DefaultRuntime::shutdown() {
  if (!is_initialized()) {
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
    // The other calls still work meanwhile: callbacks of operations that finish now may use them.
    phase_ = Phase::ShuttingDown;
    runtime = runtime_.get();
    observer = observer_.get();
  }
  try {
    observer->shutdown();
  } catch (...) {
    run_report_.note_end(false, runtime->failure());
    retire(Phase::ShutDown);
    throw;
  }
  const std::exception_ptr failure = runtime->failure();
  run_report_.note_end(true, failure);
  retire(Phase::ShutDown);
  if (problem_of_hook) std::rethrow_exception(problem_of_hook);
  return failure;
}

/// MPI_Finalize() calls it while MPI may still move data of Ronde's.
void DefaultRuntime::end_in_finalize() noexcept {
  int rank = -1;
  LogLevel level = LogLevel::Error;
  {
    std::unique_lock lock(mutex_);
    // Another thread that is in shutdown() still needs MPI; it waits for no longer than that does.
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

std::exception_ptr DefaultRuntime::take_failure_in_finalize() noexcept {
  if (is_of_parent()) return nullptr;
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_in_finalize_, nullptr);
}

bool DefaultRuntime::leave(const std::string& why) noexcept {
  if (is_of_parent()) return false;
  Runtime* runtime = nullptr;
  Observer* observer = nullptr;
  bool is_last = false;
  {
    const std::lock_guard lock(mutex_);
    if (runtime_ == nullptr) {
      return false;
    }
    runtime = runtime_.get();
    observer = observer_.get();
    // A thread that is in shutdown() drops the Runtime itself.
    is_last = phase_ == Phase::Ready;
    if (is_last) {
      phase_ = Phase::ShuttingDown;
    }
    ++uses_;
  }
  const Topology topology = runtime->topology();
  const LogLevel log_level = parse_log_level(runtime->config().log_level);
  const bool fails_others = runtime->leave(why) && topology.size > 1;
  run_report_.note_end(false, runtime->failure());
  observer->end();
  end_use();
  if (fails_others) {
    const Logger log(log_level, topology.rank);
    log.error("this process ends without ronde::shutdown(): the group fails for all ranks");
  }
  if (is_last) {
    retire(Phase::ShutDown);
  }
  return fails_others;
}

void DefaultRuntime::end_at_exit(int status) noexcept {
  const std::string why = "it ends with exit code " + std::to_string(status);
  const bool fails = leave(why) || take_failure_in_finalize() != nullptr;
  if (!fails || status != EXIT_SUCCESS || is_guest_) return;
  // The others fail now, and the job has to end non-zero: where one rank ends with zero before it
  // finalised MPI, Hydra takes that for the job's status, whatever the other ranks say. From inside
  // a handler, glibc's exit() runs the handlers that remain and takes the new status.
  std::exit(EXIT_FAILURE);
}

void DefaultRuntime::leave_for_good(const std::string& why) noexcept {
  if (is_of_parent()) return;
  Runtime* runtime = nullptr;
  Observer* observer = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (runtime_ == nullptr) return;
    runtime = runtime_.get();
    observer = observer_.get();
    ++uses_;  // so that nobody destroys them
  }
  runtime->leave(why);
  run_report_.note_end(false, runtime->failure());
  observer->end();
  end_use();
}

/// Takes the Runtime out of everybody's reach and destroys it.
void DefaultRuntime::retire(Phase next) noexcept {
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

bool DefaultRuntime::is_initialized() const noexcept {
  if (is_of_parent()) return false;
  const std::lock_guard lock(mutex_);
  return runtime_ != nullptr;
}

void DefaultRuntime::note_stall(const std::vector<StalledOperation>& operations) {
  const std::lock_guard lock(mutex_);
  if (observer_) observer_->note_stall(operations);
}

void DefaultRuntime::register_backend(const std::string& name, BackendFactory factory) {
  expect_own_process("ronde::register_backend()");
  check_backend(name, factory);
  const std::lock_guard lock(mutex_);
  require_not_initialized("ronde::register_backend()");
  if (!registered_.emplace(name, std::move(factory)).second) {
    throw UsageError("ronde::register_backend(): the name \"" + name +
                     "\" is taken by an earlier call; choose another one");
  }
}

void DefaultRuntime::set_stall_callback(StallCallback callback) {
  expect_own_process("ronde::set_stall_callback()");
  const std::lock_guard lock(mutex_);
  require_not_initialized("ronde::set_stall_callback()");
  on_stall_ = std::move(callback);
}

void DefaultRuntime::add_init_hook(Hook hook) {
  if (!hook) {
    throw UsageError("ronde::add_init_hook() was given an empty function");
  }
  expect_own_process("ronde::add_init_hook()");
  const std::lock_guard lock(mutex_);
  hooks_.push_back(std::move(hook));
}

/// Called with mutex_ held.
void DefaultRuntime::require_not_initialized(std::string_view function) const {
  if (phase_ == Phase::Fresh || phase_ == Phase::ShutDown) {
    return;
  }
  throw UsageError(std::string(function) +
                   " was called after ronde::init(): it is for the next init, call it before");
}

/// Called with mutex_ held.
void DefaultRuntime::throw_not_ready(std::string_view function) const {
  if (phase_ == Phase::ShutDown) {
    throw NotInitializedError(std::string(function) +
                              " was called after ronde::shutdown(), or after MPI_Finalize(), which "
                              "calls it: this rank has left the group; move the call before");
  }
  throw NotInitializedError(
      std::string(function) +
      " was called before ronde::init(): call ronde::init() first, at the start of "
      "main");
}

DefaultRuntime::Use::Use(DefaultRuntime& owner, std::string_view function) : owner_(owner) {
  owner_.expect_own_process(function);
  const std::lock_guard lock(owner_.mutex_);
  if (owner_.runtime_ == nullptr) {
    owner_.throw_not_ready(function);
  }
  runtime_ = owner_.runtime_.get();
  observer_ = owner_.observer_.get();
  ++owner_.uses_;
}

DefaultRuntime::Use::~Use() {
  owner_.end_use();
}

void DefaultRuntime::end_use() noexcept {
  const std::lock_guard lock(mutex_);
  if (--uses_ == 0) {
    unused_.notify_all();
  }
}

}  // namespace ronde
