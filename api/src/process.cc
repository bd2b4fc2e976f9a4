// SPDX-License-Identifier: Apache-2.0
#include "api/src/process.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <future>
#include <thread>
#include <utility>

#include "core/src/base/caller.h"
#include "core/src/base/text.h"
#include "observe/timeline/nvtx_ranges.h"
#include "ronde/error.h"

namespace ronde {
namespace {

constexpr std::uint32_t kMostSetsOfAStart = 1U << 16;

/// The former handler of std::terminate(); written once.
std::terminate_handler next_terminate = nullptr;

/// Reports an uncaught exception to the other ranks before it ends the process. The exception may
/// have been thrown under a lock, as nothing is unwound: so this thread does not wait for long.
void leave_and_terminate() {
  if (std::current_exception() != nullptr) {
    const auto reported = std::make_shared<std::promise<void>>();
    std::thread([reported, why = "an uncaught exception ends it: " + exception_text()] {
      Process::instance().leave_for_good(why);
      reported->set_value();
    }).detach();
    reported->get_future().wait_for(kLongestUse);
  }
  if (next_terminate != nullptr) next_terminate();
  std::abort();
}

}  // namespace

Process::Process()
    : run_report_(process_environment()),
      no_report_([](const std::string&) { return std::nullopt; }),
      default_(std::make_shared<HostedRuntime>(kGlobalSet.world, "", run_report_)) {}

Process& Process::instance() {
  static auto* const kInstance = new Process();
  return *kInstance;
}

void Process::init(StartOptions options, std::uint32_t start_number) {
  HostedRuntime::expect_own_process("ronde::init()");
  default_->begin();
  run_report_.note(RunBoard::kStarting);
  options.runtime.sets_before = start_number * kMostSetsOfAStart;
  options.on_program_finalize = [this] { default_->end_in_finalize(); };
  start(default_, options, run_report_);
  is_guest_ = options.is_guest;
  ++starts_;
  if (!is_guest_) {
    const std::terminate_handler before = std::set_terminate(&leave_and_terminate);
    if (before != &leave_and_terminate) next_terminate = before;
  }
  try {
    run_hooks();
  } catch (...) {
    default_->drop();
    throw;
  }
}

std::shared_ptr<HostedRuntime> Process::make_world(const std::string& name, StartOptions options) {
  HostedRuntime::expect_own_process("ronde::World");
  if (is_loop_thread() || EngineScope::is_inside()) {
    throw UsageError(
        "a ronde::World was made in a callback of an operation, which would wait for other ranks: "
        "make it on a thread of the program");
  }
  RuntimeOptions& runtime = options.runtime;
  runtime.world_name = name;
  runtime.config_error = check_name(name, options.init.key_value);
  {
    const std::lock_guard lock(mutex_);
    runtime.world = next_world_++;
  }
  const auto world = std::make_shared<HostedRuntime>(runtime.world, name, no_report_);
  world->begin();
  start(world, options, no_report_);
  const std::lock_guard lock(mutex_);
  worlds_.emplace(world->set().world, world);
  return world;
}

void Process::start(const std::shared_ptr<HostedRuntime>& world, StartOptions& options,
                    RunReport& report) {
  try {
    BackendRegistry registered;
    {
      const std::lock_guard lock(mutex_);
      registered = registered_;
      const std::weak_ptr<HostedRuntime> stalls = world;
      options.runtime.on_stall = [stalls, of_program = on_stall_](const auto& operations) {
        if (const auto hosted = stalls.lock()) hosted->record_stall(operations);
        if (of_program) of_program(operations);
      };
    }
    load_start_options(options, registered);
    const std::string& problem = report.problem();
    if (!problem.empty()) options.warnings.push_back(problem);
    options.runtime.on_event = report.counting_steps(nvtx_ranges());
    std::unique_ptr<DumpSignal> signal = wanted_signal(options.runtime.config);
    std::unique_ptr<Runtime> runtime = start_runtime(options);
    auto observer = std::make_unique<Observer>(*runtime, std::move(signal), *options.read_gpu);
    report.note(RunBoard::kStarted);
    watch_exit(world->set().world);
    world->publish(std::move(runtime), std::move(observer));
  } catch (...) {
    world->fail_to_start();
    throw;
  }
}

/// Called after a start: so the handler runs before the destructors of statics that libraries made
/// during the start, and after handlers that the program registers later, which may shut it down.
/// The worlds after the first kMostExitHandlers get none.
void Process::watch_exit(std::uint32_t world) {
  const std::lock_guard lock(mutex_);
  const bool is_default = world == kGlobalSet.world;
  int& handlers = is_default ? default_exit_handlers_ : exit_handlers_;
  if (handlers == (is_default ? 1 : kMostExitHandlers)) return;
  const auto end = [](int status, void* number) {
    instance().end_at_exit(status,
                           static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(number)));
  };
  if (on_exit(end, reinterpret_cast<void*>(std::uintptr_t{world})) == 0) ++handlers;
}

void Process::run_hooks() {
  std::vector<Hook> hooks;
  {
    const std::lock_guard lock(mutex_);
    hooks = hooks_;
  }
  for (const Hook& hook : hooks) {
    if (!default_->is_there()) return;  // a hook has ended it
    Runtime& runtime = *use("ronde::init()");
    hook(runtime);
  }
}

/// Returns why no world can have this name; empty if one can. Ranks of one world may be
/// threads of this process, if each states its rank.
std::string Process::check_name(const std::string& name,
                                const std::optional<KeyValueStart>& by_key) const {
  constexpr std::size_t kLongest = 40;
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  const bool is_like_rank = name.size() > 4 &&
                            name.starts_with("rank") &&  // files of a rank end like that
                            name.find_first_not_of("0123456789", 4) == std::string::npos;
  if (name.size() > kLongest || name.find_first_not_of(kLetters) != std::string::npos ||
      name.find_first_not_of('.') == std::string::npos || is_like_rank) {
    throw UsageError("ronde::World: '" + name.substr(0, kLongest) +
                     "' cannot name a world, as files bear it: use up to 40 letters, digits, '.', "
                     "'_' and '-', but not rank0 and the like");
  }
  for (const auto& [number, world] : worlds()) {
    if (world->name() != name || (by_key && by_key->rank != world->rank())) continue;
    return "ronde::World: this process is in a world '" + name +
           "' already: give each a name of its own, or shut the other one down";
  }
  return {};
}

void Process::forget(const HostedRuntime& world) noexcept {
  if (HostedRuntime::is_of_parent()) return;
  const std::lock_guard lock(mutex_);
  worlds_.erase(world.set().world);
}

HostedRuntime::Use Process::use(std::string_view function, ProcessSet set) {
  if (set.world == kGlobalSet.world) return HostedRuntime::Use(*default_, function);
  std::shared_ptr<HostedRuntime> world = living(set.world, function);
  HostedRuntime& owner = *world;
  return HostedRuntime::Use(owner, function, std::move(world));
}

/// Throws NotInitializedError, on behalf of `function`, where the world does not live.
std::shared_ptr<HostedRuntime> Process::living(std::uint32_t number,
                                               std::string_view function) const {
  HostedRuntime::expect_own_process(function);
  if (std::shared_ptr<HostedRuntime> world = find(number)) return world;
  throw NotInitializedError(std::string(function) +
                            ": the process set belongs to a ronde::World that has been shut down, "
                            "that was moved from, or that another process made");
}

std::shared_ptr<HostedRuntime> Process::find(std::uint32_t number) const {
  if (number == kGlobalSet.world) return default_;
  if (HostedRuntime::is_of_parent()) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto found = worlds_.find(number);
  return found == worlds_.end() ? nullptr : found->second;
}

Process::Worlds Process::worlds() const noexcept {
  if (HostedRuntime::is_of_parent()) return {};
  const std::lock_guard lock(mutex_);
  return worlds_;
}

void Process::end_at_exit(int status, std::uint32_t number) noexcept {
  const std::string why = "it ends with exit code " + std::to_string(status);
  const std::shared_ptr<HostedRuntime> world = find(number);
  if (!world) return;
  const bool fails = world->leave(why) || world->take_failure_in_finalize() != nullptr;
  if (world != default_ || !fails || status != EXIT_SUCCESS || is_guest_) return;
  // The others fail, and the job has to end non-zero: where one rank ends with zero before it
  // finalised MPI, Hydra uses that as the job's status, whatever the other ranks return. Inside a
  // handler, glibc's exit() runs the remaining handlers and uses the new status.
  std::exit(EXIT_FAILURE);
}

void Process::leave_for_good(const std::string& why) noexcept {
  default_->leave(why, HostedRuntime::Then::Keep);
  for (const auto& [number, world] : worlds()) world->leave(why, HostedRuntime::Then::Keep);
}

void Process::register_backend(const std::string& name, BackendFactory factory) {
  HostedRuntime::expect_own_process("ronde::register_backend()");
  check_backend(name, factory);
  default_->require_not_there("ronde::register_backend()");
  const std::lock_guard lock(mutex_);
  if (!registered_.emplace(name, std::move(factory)).second) {
    throw UsageError("ronde::register_backend(): the name \"" + name +
                     "\" is taken by an earlier call; choose another one");
  }
}

void Process::set_stall_callback(StallCallback callback) {
  HostedRuntime::expect_own_process("ronde::set_stall_callback()");
  default_->require_not_there("ronde::set_stall_callback()");
  const std::lock_guard lock(mutex_);
  on_stall_ = std::move(callback);
}

void Process::add_init_hook(Hook hook) {
  if (!hook) {
    throw UsageError("ronde::add_init_hook() was given an empty function");
  }
  HostedRuntime::expect_own_process("ronde::add_init_hook()");
  const std::lock_guard lock(mutex_);
  hooks_.push_back(std::move(hook));
}

std::uint64_t Process::add_shutdown_hook(std::function<void()> hook, ProcessSet set) {
  const std::uint64_t number = next_hook_++;
  living(set.world, "ronde::add_shutdown_hook()")->add_shutdown_hook(number, std::move(hook));
  return number;
}

void Process::remove_shutdown_hook(std::uint64_t number, ProcessSet set) {
  if (const std::shared_ptr<HostedRuntime> world = find(set.world)) {
    world->remove_shutdown_hook(number);
  }
}

}  // namespace ronde
