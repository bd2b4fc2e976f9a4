// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "api/observe/live/run_board.h"
#include "api/observe/observer.h"
#include "ronde/init_options.h"
#include "ronde/plugin/factory.h"
#include "ronde/runtime.h"

namespace ronde {

/// The one default Runtime of the process and what is registered for it.
///
/// Thread-safety: every member may be called from any thread. The mutex is never held while a
/// Runtime is made, used or destroyed: those take long, and Ronde's thread calls back into here.
class DefaultRuntime {
 public:
  using Hook = std::function<void(Runtime&)>;

  /// The only instance. Never destroyed, as user code may call in while the process's statics go.
  static DefaultRuntime& instance();

  DefaultRuntime(const DefaultRuntime&) = delete;
  DefaultRuntime& operator=(const DefaultRuntime&) = delete;

  void init(const InitOptions& options);
  /// Operations stall, of which the observer makes a note.
  void note_stall(const std::vector<StalledOperation>& operations);
  /// Returns what the group had died of, null if it had not.
  std::exception_ptr shutdown();
  bool is_initialized() const noexcept;
  bool is_guest() const noexcept { return is_guest_; }
  void note_checkpoint(std::int64_t step) noexcept { run_report_.note_checkpoint(step); }

  /// Leaves the group without a shutdown, or in the middle of that of another thread: the others
  /// learn that this rank left, and threads that wait here get a GroupError. Never blocks on the
  /// others, which are told `why`. True if there were any.
  bool leave(const std::string& why) noexcept;

  /// The same for a process that ends right after it, and keeps the Runtime.
  void leave_for_good(const std::string& why) noexcept;

  void register_backend(const std::string& name, BackendFactory factory);
  void set_stall_callback(StallCallback callback);
  void add_init_hook(Hook hook);
  std::uint64_t add_shutdown_hook(std::function<void()> hook);
  void remove_shutdown_hook(std::uint64_t number);

  /// Keeps the Runtime alive for one use: a short one, or one that a shutdown() or leave() ends.
  class Use {
   public:
    Use(DefaultRuntime& owner, std::string_view function);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    Runtime& operator*() const noexcept { return *runtime_; }
    Runtime* operator->() const noexcept { return runtime_; }
    Observer& observer() const noexcept { return *observer_; }

   private:
    DefaultRuntime& owner_;
    Runtime* runtime_ = nullptr;
    Observer* observer_ = nullptr;
  };

 private:
  enum class Phase { Fresh, Initializing, Ready, ShuttingDown, ShutDown };
  static constexpr int kNotStarted = -1;

  DefaultRuntime() : run_report_(process_environment()) {}

  void begin_init();
  void publish(std::unique_ptr<Runtime> runtime, std::unique_ptr<Observer> observer);
  void run_hooks();
  std::exception_ptr run_shutdown_hooks();
  void retire(Phase next) noexcept;
  void end_at_exit(int status) noexcept;
  void end_in_finalize() noexcept;
  std::exception_ptr take_failure_in_finalize() noexcept;
  void end_use() noexcept;
  bool is_of_parent() const noexcept;
  void expect_own_process(std::string_view function) const;
  void require_not_initialized(std::string_view function) const;
  [[noreturn]] void throw_not_ready(std::string_view function) const;

  RunReport run_report_;
  std::atomic<bool> is_guest_{false};         // of the last init
  std::atomic<int> fork_depth_{kNotStarted};  // of the process that started runtime_
  mutable std::mutex mutex_;
  std::condition_variable unused_;  // uses_ became 0, or a shutdown has ended
  // Guarded by mutex_.
  Phase phase_ = Phase::Fresh;
  bool leaves_at_exit_ = false;
  std::unique_ptr<Runtime> runtime_;    // set while Ready and ShuttingDown
  std::unique_ptr<Observer> observer_;  // the same; of runtime_
  int uses_ = 0;
  std::exception_ptr failure_in_finalize_;  // until shutdown() tells of it
  BackendRegistry registered_;
  StallCallback on_stall_;
  std::vector<Hook> hooks_;
  std::mutex shutdown_hooks_mutex_;  // held while they run
  std::map<std::uint64_t, std::function<void()>> shutdown_hooks_;
  std::uint64_t next_shutdown_hook_ = 0;
};

}  // namespace ronde
