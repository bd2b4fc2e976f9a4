// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "observe/live/run_board.h"
#include "observe/observer.h"
#include "ronde/process_set.h"
#include "ronde/runtime.h"

namespace ronde {

/// Uses are short once a Runtime has ended. A longer one belongs to a thread that will never run
/// again.
inline constexpr std::chrono::seconds kLongestUse{2};

/// The Runtime of a world in this process, with its observer. Any thread may use it while another
/// one ends it. The world of ronde::init() may start again after its end, a World does not.
///
/// Thread-safety: every member may be called from any thread. The mutex is never held while a
/// Runtime is made, used or destroyed: that takes long, and the thread of the Runtime calls these
/// functions. A Use takes no lock: it counts itself before it reads usable_, which the end of the
/// Runtime clears before it reads the count.
class HostedRuntime {
  struct Hosted {
    std::unique_ptr<Runtime> runtime;
    std::unique_ptr<Observer> observer;  ///< destroyed first
  };

 public:
  /// `name`: RuntimeOptions::world_name. `report` receives the end, and outlives this.
  HostedRuntime(std::uint32_t world, std::string name, RunReport& report)
      : world_(world), name_(std::move(name)), report_(report) {}
  HostedRuntime(const HostedRuntime&) = delete;
  HostedRuntime& operator=(const HostedRuntime&) = delete;

  ProcessSet set() const noexcept { return {kGlobalSet.id, world_}; }
  const std::string& name() const noexcept { return name_; }
  /// Returns the rank of this process in the world; -1 where it has no Runtime.
  int rank() const noexcept;

  /// Begins a start. Throws UsageError if there is a Runtime already.
  void begin();
  /// Ends a start that failed.
  void fail_to_start();
  /// Ends the start: any thread may use the Runtime from now on.
  void publish(std::unique_ptr<Runtime> runtime, std::unique_ptr<Observer> observer);

  /// Has the observer record operations that stall.
  void record_stall(const std::vector<StalledOperation>& operations);
  /// Returns why the group had failed; null if it had not.
  std::exception_ptr shutdown(std::optional<std::chrono::nanoseconds> limit = {});
  bool is_there() const noexcept;

  /// Called by MPI_Finalize() while MPI may still move data of Ronde.
  void end_in_finalize() noexcept;
  /// Returns what end_in_finalize() caught, once.
  std::exception_ptr take_failure_in_finalize() noexcept;

  /// A process that is about to end keeps the Runtime.
  enum class Then { Destroy, Keep };
  /// Leaves the group without a shutdown, or in the middle of that of another thread: the others
  /// learn that this rank left, and threads that wait here get a GroupError. Never blocks on the
  /// others, which receive `why`. Returns whether there were any.
  bool leave(const std::string& why, Then then = Then::Destroy) noexcept;
  /// Destroys the Runtime, which no thread can use any more, after a start that failed late.
  void drop() noexcept { retire(Phase::Fresh); }

  /// `number`: unique among the hooks of the process.
  void add_shutdown_hook(std::uint64_t number, std::function<void()> hook);
  void remove_shutdown_hook(std::uint64_t number);

  /// Throws UsageError, on behalf of `function`, unless a Runtime could start.
  void require_not_there(std::string_view function) const;
  /// Returns whether this is a child of fork() of a process with a Runtime: Note [After fork] in
  /// core/src/base/caller.h.
  static bool is_of_parent() noexcept;
  /// Throws UsageError in such a child, on behalf of `function`.
  static void expect_own_process(std::string_view function);

  /// Keeps the Runtime alive for one use: a short one, or one that a shutdown() or leave() ends.
  class Use {
   public:
    /// `keeps_owner`: null where the owner lives as long as the process.
    Use(HostedRuntime& owner, std::string_view function,
        std::shared_ptr<HostedRuntime> keeps_owner = nullptr);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    Runtime& operator*() const noexcept { return *hosted_->runtime; }
    Runtime* operator->() const noexcept { return hosted_->runtime.get(); }
    Observer& observer() const noexcept { return *hosted_->observer; }

   private:
    const std::shared_ptr<HostedRuntime> keeps_owner_;
    HostedRuntime& owner_;
    const Hosted* hosted_ = nullptr;
  };

 private:
  enum class Phase { Fresh, Initializing, Ready, ShuttingDown, ShutDown };

  static inline std::atomic<int> living_{0};      // Runtimes of this process, or of its parent
  static inline std::atomic<int> fork_depth_{0};  // of the process that started them

  std::exception_ptr run_shutdown_hooks();
  void retire(Phase next) noexcept;
  void end_use() noexcept;
  [[noreturn]] void throw_not_ready(std::string_view function) const;

  const std::uint32_t world_;
  const std::string name_;
  RunReport& report_;
  std::atomic<const Hosted*> usable_{nullptr};  // that of hosted_
  std::atomic<int> uses_{0};
  mutable std::mutex mutex_;
  std::condition_variable unused_;  // uses_ became 0, or a shutdown has ended
  // Guarded by mutex_.
  Phase phase_ = Phase::Fresh;
  std::unique_ptr<const Hosted> hosted_;    // set while Ready and ShuttingDown
  std::exception_ptr failure_in_finalize_;  // until shutdown() throws it
  std::mutex shutdown_hooks_mutex_;         // held while they run
  std::map<std::uint64_t, std::function<void()>> shutdown_hooks_;
};

}  // namespace ronde
