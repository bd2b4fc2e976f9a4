// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/src/hosted_runtime.h"
#include "api/src/start_options.h"
#include "observe/live/run_board.h"
#include "ronde/init_options.h"
#include "ronde/plugin/factory.h"

namespace ronde {

/// The singleton of this process: the world of init() and the Worlds beside it, what is registered
/// for them, and their end when the process ends.
///
/// Thread-safety: every member may be called from any thread. The mutex is not held while that of a
/// HostedRuntime is locked.
class Process {
 public:
  using Hook = std::function<void(Runtime&)>;

  /// The only instance. Never destroyed, as the program may call it while its statics are
  /// destroyed.
  static Process& instance();

  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// The world of init().
  HostedRuntime& default_world() noexcept { return *default_; }
  void init(const InitOptions& options) { init({.init = options}, starts_); }
  /// `start`: counts the starts from 0, alike on rank 0 of all of them, as process sets of an
  /// earlier start are told from those of this one by their numbers.
  void init(StartOptions options, std::uint32_t start);
  /// Makes the world of a World.
  std::shared_ptr<HostedRuntime> make_world(const std::string& name, StartOptions options);
  /// Removes a world that has ended.
  void forget(const HostedRuntime& world) noexcept;
  /// Uses the world that a set belongs to, on behalf of `function`.
  HostedRuntime::Use use(std::string_view function, ProcessSet set = kGlobalSet);

  bool is_guest() const noexcept { return is_guest_; }
  void note_checkpoint(std::int64_t step) noexcept { run_report_.note_checkpoint(step); }

  /// Leaves every world, as this process ends. The Runtimes are kept.
  void leave_for_good(const std::string& why) noexcept;

  void register_backend(const std::string& name, BackendFactory factory);
  void set_stall_callback(StallCallback callback);
  void add_init_hook(Hook hook);
  std::uint64_t add_shutdown_hook(std::function<void()> hook, ProcessSet set);
  void remove_shutdown_hook(std::uint64_t number, ProcessSet set);

 private:
  using Worlds = std::map<std::uint32_t, std::shared_ptr<HostedRuntime>>;  ///< oldest first
  static constexpr int kMostExitHandlers = 64;

  Process();

  void start(const std::shared_ptr<HostedRuntime>& world, StartOptions& options, RunReport& report);
  void watch_exit(std::uint32_t world);
  void run_hooks();
  void end_at_exit(int status, std::uint32_t number) noexcept;
  std::shared_ptr<HostedRuntime> find(std::uint32_t number) const;
  std::shared_ptr<HostedRuntime> living(std::uint32_t number, std::string_view function) const;
  Worlds worlds() const noexcept;
  std::string check_name(const std::string& name, const std::optional<KeyValueStart>& by_key) const;

  RunReport run_report_;
  RunReport no_report_;  ///< `ronde run` watches the world of init() alone
  const std::shared_ptr<HostedRuntime> default_;
  std::atomic<bool> is_guest_{false};     ///< of the last init
  std::atomic<std::uint32_t> starts_{0};  ///< of the world of init()
  std::atomic<std::uint64_t> next_hook_{0};
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  Worlds worlds_;  ///< without that of init()
  std::uint32_t next_world_ = 1;
  int default_exit_handlers_ = 0;  ///< of init(): 0 or 1
  int exit_handlers_ = 0;          ///< of Worlds
  BackendRegistry registered_;
  StallCallback on_stall_;
  std::vector<Hook> hooks_;
};

}  // namespace ronde
