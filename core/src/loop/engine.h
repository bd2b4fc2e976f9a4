// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/src/base/caller.h"
#include "core/src/events/event_log.h"
#include "core/src/group/bootstrap.h"
#include "core/src/group/control_tree.h"
#include "core/src/group/engine_life.h"
#include "core/src/group/failure_resolver.h"
#include "core/src/loop/backend_maker.h"
#include "core/src/loop/control_plane.h"
#include "core/src/loop/loop.h"
#include "core/src/loop/process_set_maker.h"
#include "core/src/op/submission_queue.h"
#include "core/src/op/submitter.h"
#include "ronde/log.h"
#include "ronde/persistent.h"
#include "ronde/runtime.h"

namespace ronde {

/// One rank of a group, behind a Runtime: owns all parts, starts them, runs the loop in a thread,
/// and ends them. That thread shares ownership, so that it can be abandoned if it hangs.
///
/// Thread-safety: every member may be called from any thread; quit() must be the last call.
class Engine final : public WaitHelper, public std::enable_shared_from_this<Engine> {
 public:
  /// Blocks until the ranks have met, as the constructor of Runtime.
  static std::shared_ptr<Engine> launch(RuntimeOptions options);
  explicit Engine(RuntimeOptions options);
  ~Engine() override = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Note [After fork].
  bool is_of_parent() const noexcept { return fork_depth() != fork_depth_; }

  // launch() and shutdown() in parts that do not wait, for a simulation.

  /// What the loop's thread runs: starts, runs the loop, and ends.
  void run() noexcept;
  bool has_started() const { return life_.has_started(); }
  /// Throws why it could not start, if so.
  void expect_started() { life_.wait_started({}); }
  /// Closes the queue and has the loop end. `why`: for the other ranks; may be empty.
  void request_leave(const std::string& why = {});
  /// Closes the queue and has the loop end with those of the other ranks. Returns the limit; zero
  /// if there is none.
  std::chrono::nanoseconds request_shutdown(std::string report,
                                            std::optional<std::chrono::nanoseconds> limit);

  bool leave(const std::string& why) noexcept;
  std::vector<std::string> shutdown(std::string report,
                                    std::optional<std::chrono::nanoseconds> limit = {});
  void abort(const std::string& text);
  /// Ends the engine, as its Runtime is destroyed.
  void quit() noexcept;

  /// Returns the error of a failed group; null if it has not failed.
  std::exception_ptr failure() const { return life_.failure(); }
  /// Records that the program receives the error of a failed group.
  void mark_failure_reported() noexcept { life_.mark_failure_reported(); }

  void help(WorkState& work, Stage goal, TimePoint deadline) noexcept override {
    loop_.help(work, goal, deadline);
  }
  void on_error_read(const std::exception_ptr& error) noexcept override;
  bool asleep() const noexcept { return loop_.asleep(); }

  const Config& config() const noexcept { return options_.config; }
  const std::string& world_name() const noexcept { return options_.world_name; }
  Stats stats() const;
  Figures figures() const;
  const std::shared_ptr<EventLog>& events() const noexcept { return events_; }
  void expect_timeout(std::chrono::nanoseconds longest) noexcept;
  void add_stats(std::function<StatsGroup()> part);

  Submitter& submitter() noexcept { return *submitter_; }
  PersistentOp prepare(Request request);
  ProcessSetMaker& set_maker() noexcept { return *set_maker_; }
  const SetTable& process_sets() const noexcept { return table_; }
  const Topology& topology() const noexcept { return tree_.topology(); }
  const std::string& transport_name() const noexcept { return transport_name_; }
  const BackendMaker& backends() const noexcept { return backends_; }
  void on_step() { control_.on_step(); }
  std::uint64_t joins(ProcessSet set) { return queue_.names()->joins(table_.at(set)->id); }

 private:
  // The program's threads call these.
  void start_thread();
  [[noreturn]] void fail_start() const;
  void leave_from_within(const std::string& why) noexcept;
  std::optional<GroupError> wait_closed();
  bool join(TimePoint deadline);

  // The loop's thread calls these before the loop, and when it runs.
  void start();
  void log_connections() const;
  void agree_on_tuned_values();
  void make_board();
  void run_loop() noexcept;

  // The loop's thread calls these after the loop.
  void end_failed(const GroupFailure& seen) noexcept;
  std::exception_ptr error_of(const FailureMessage& failure) const;
  void stop();
  void end(bool graceful, TimePoint deadline);
  void try_end(bool graceful) noexcept;
  Stats live_stats() const;

  // Constant after construction but for RONDE_TUNED in start(), or thread-safe.
  RuntimeOptions options_;
  const std::shared_ptr<Logger> log_;
  const std::shared_ptr<EventLog> events_;
  const TimePoint made_;
  const TimePoint start_deadline_;  ///< the transport may set an earlier one
  SubmissionQueue queue_;
  EngineLife life_;
  SetTable table_;

  // Written before EngineLife::wait_started() returns, constant from then on.
  ControlTree tree_;  ///< sending and receiving: only where the loop runs
  std::optional<Bootstrap> bootstrap_;
  BackendMaker backends_;
  std::unique_ptr<Board> board_;  ///< null where the ranks share no memory
  std::string transport_name_;
  std::optional<Submitter> submitter_;
  std::optional<ProcessSetMaker> set_maker_;

  ControlPlane control_;
  bool has_left_ = false;  ///< in a callback
  Loop loop_;

  const int fork_depth_ = fork_depth();
  std::mutex shutdown_mutex_;
  std::thread thread_;  // guarded by shutdown_mutex_ from launch() to quit()

  // Guarded by stats_mutex_.
  mutable std::mutex stats_mutex_;
  std::optional<Stats> final_stats_;
  std::vector<std::function<StatsGroup()>> more_stats_;
};

}  // namespace ronde
