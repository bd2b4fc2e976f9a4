// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/src/engine/backend_maker.h"
#include "core/src/engine/coordinator.h"
#include "core/src/engine/driver.h"
#include "core/src/engine/process_set_maker.h"
#include "core/src/events/event_log.h"
#include "core/src/group/bootstrap.h"
#include "core/src/group/control_tree.h"
#include "core/src/group/engine_life.h"
#include "core/src/group/failure_resolver.h"
#include "core/src/queue/submission_queue.h"
#include "core/src/queue/submitter.h"
#include "core/src/sets/engine_stats.h"
#include "ronde/log.h"
#include "ronde/runtime.h"

namespace ronde {

/// The engine of one rank: owns all its parts, starts them, has the Driver run the loop of the
/// Coordinator, and ends them.
///
/// Thread-safety: run() is called once, on the coordinator thread; what is marked so may be called
/// from any thread.
class Engine final : public WaitHelper, public std::enable_shared_from_this<Engine> {
 public:
  using Clock = std::chrono::steady_clock;

  /// Time limit for closing the connections once all ranks have agreed to stop.
  static constexpr std::chrono::seconds kClosingTime{30};

  explicit Engine(RuntimeOptions options);
  ~Engine() override = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Runs this rank from start to end: meets the others, loops, stops.
  void run() noexcept;

  // Any thread, from here on.

  /// Any thread may wait on it.
  EngineLife& life() noexcept { return life_; }
  /// The step of its own in which this rank's start hangs; nothing if it waits for others.
  std::optional<GroupError> hanging_start() const { return backends_.hanging_start(); }
  /// The error of a dead group; null while it lives.
  std::exception_ptr failure() const { return life_.failure(); }

  void help(const WorkState& work, Stage goal, TimePoint deadline) noexcept override;
  void expedite(const WorkState& work) noexcept override;
  void note_waited(const WorkState& work) noexcept override;
  void note_wait() noexcept override { queue_.note_wait(); }
  void note_read(const std::exception_ptr& error) noexcept override;
  bool asleep() const noexcept { return driver_.asleep(); }
  /// Once it has ended: as Runtime::shutdown() returns them.
  std::vector<std::string> reports() const;
  /// The caller is a callback of an operation: the engine would wait for itself.
  bool is_loop_of_this_thread() const noexcept { return driver_.is_this_thread(); }

  void request_shutdown(std::string report);
  /// `why`, for the others; empty if it is not known.
  void request_leave(const std::string& why = {});
  /// Called in a callback, by a rank that leaves. Waits of this rank stay as they are.
  void leave_from_within(const std::string& why) noexcept;
  void request_abort(const std::string& text);

  const Config& config() const noexcept { return options_.config; }
  Stats stats() const;
  Figures figures() const;
  const std::shared_ptr<EventLog>& events() const noexcept { return events_; }
  void add_stats(std::function<StatsGroup()> part);

  // Any thread, once EngineLife::wait_started() has returned.

  Submitter& submitter() noexcept { return *submitter_; }
  ProcessSetMaker& set_maker() noexcept { return *set_maker_; }
  const SetTable& process_sets() const noexcept { return table_; }
  const Topology& topology() const noexcept { return tree_.topology(); }
  const std::string& transport_name() const noexcept { return transport_name_; }
  const BackendMaker& backends() const noexcept { return backends_; }
  void note_step() { coordinator_.note_step(); }
  std::uint64_t joins(ProcessSet set) const { return queue_.joins(set.id); }

 private:
  // Before the loop, and when it runs.
  bool try_start() noexcept;
  void start();
  void log_connections() const;
  void adopt_tuned();
  void make_board();
  void live() noexcept;

  // After the loop.
  void die(const GroupFailure& seen) noexcept;
  void fail_everything(const FailureMessage& failure);
  void stop();
  void end(bool graceful, TimePoint deadline);
  void end_anyhow(bool graceful) noexcept;
  Stats live_stats() const;
  void note_wait_of(const WorkState& work, EventKind kind, TimePoint time) noexcept;

  // Constant after construction but for RONDE_TUNED in start(), or made for any thread.
  RuntimeOptions options_;
  const std::shared_ptr<Logger> log_;
  const std::shared_ptr<EventLog> events_;
  const TimePoint made_;
  const TimePoint start_deadline_;  ///< the transport may set an earlier one
  SubmissionQueue queue_;
  EngineCounters counters_;
  EngineLife life_;
  SetTable table_;

  // Written before EngineLife::wait_started() returns, constant from then on.
  ControlTree tree_;  ///< its messages: of whoever runs the loop
  std::optional<Bootstrap> bootstrap_;
  BackendMaker backends_;
  std::unique_ptr<Board> board_;  ///< null where the ranks share no memory
  std::string transport_name_;
  std::optional<Submitter> submitter_;
  std::optional<ProcessSetMaker> set_maker_;

  Coordinator coordinator_;
  bool has_left_ = false;  ///< in a callback
  Driver driver_;

  // Guarded by stats_mutex_.
  mutable std::mutex stats_mutex_;
  std::optional<Stats> final_stats_;
  std::vector<std::function<StatsGroup()>> more_stats_;
};

}  // namespace ronde
