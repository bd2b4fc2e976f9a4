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
#include <string_view>
#include <vector>

#include "arbiter.h"
#include "backend_maker.h"
#include "bootstrap.h"
#include "control_tree.h"
#include "driver.h"
#include "engine_life.h"
#include "engine_stats.h"
#include "failure_resolver.h"
#include "messages.h"
#include "own_exchanges.h"
#include "process_set_maker.h"
#include "ronde/log.h"
#include "ronde/runtime.h"
#include "running_operations.h"
#include "schedule_runner.h"
#include "set_engines.h"
#include "stop_agreement.h"
#include "submission_queue.h"
#include "submitter.h"

namespace ronde {

/// The engine of one rank. Its loop is the protocol (docs/protocol.md):
/// receive -> take exchanges and submissions -> negotiate -> advance operations -> conclude ->
/// inspect. Driver says who runs it.
///
/// Thread-safety: run() is called once, on the coordinator thread; what is marked so may be called
/// from any thread.
class Coordinator final : public WaitHelper,
                          public std::enable_shared_from_this<Coordinator>,
                          private DrivenLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using TimePoint = Clock::time_point;

  /// How long closing the connections may take once all ranks have agreed to stop.
  static constexpr std::chrono::seconds kClosingTime{30};

  explicit Coordinator(RuntimeOptions options);
  ~Coordinator() override = default;
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// Lives this rank's life: meets the others, loops, stops.
  void run() noexcept;

  // Any thread, from here on.

  /// Its waits are for any thread.
  EngineLife& life() noexcept { return life_; }
  /// What this rank is in by itself that keeps its start from ending; nothing if it waits for
  /// others.
  std::optional<GroupError> hanging_start() const { return backends_.hanging_start(); }
  /// Why the group died; null if it has not.
  std::exception_ptr failure() const { return life_.failure(); }

  void help(const WorkState& work, Stage goal, TimePoint deadline) noexcept override {
    driver_.help(work, goal, deadline);
  }
  void rouse(const WorkState& work) noexcept override;
  void note_wait() noexcept override { queue_.note_wait(); }
  bool asleep() const noexcept { return driver_.asleep(); }
  /// A callback of an operation calls: the engine would wait for itself.
  bool is_loop_of_this_thread() const noexcept { return driver_.is_this_thread(); }

  void request_shutdown();
  /// `why`, for the others; empty if it is not known.
  void request_leave(const std::string& why = {});
  /// Called in a callback, by a rank that leaves. Waits of this rank stay as they are.
  void leave_from_within(const std::string& why) noexcept;
  void request_abort(const std::string& text);

  const Config& config() const noexcept { return options_.config; }
  Stats stats() const;
  void add_stats(std::function<StatsGroup()> part);

  // Any thread, once EngineLife::wait_started() has returned.

  Submitter& submitter() noexcept { return *submitter_; }
  ProcessSetMaker& set_maker() noexcept { return *set_maker_; }
  const SetTable& process_sets() const noexcept { return table_; }
  const Topology& topology() const noexcept { return tree_.topology(); }
  const std::string& transport_name() const noexcept { return transport_name_; }
  const BackendMaker& backends() const noexcept { return backends_; }
  std::uint64_t joins(ProcessSet set) const { return queue_.joins(set.id); }

 private:
  // Before the loop.
  bool try_start() noexcept;
  void start();
  void log_connections() const;
  void make_board();

  // The loop.
  void live() noexcept;
  bool cycle() override;
  void follow() override;
  TimePoint next_event() const override;
  void receive();
  void handle(const Incoming& incoming);
  void handle_message(int peer, const Message& message);
  void handle_from_above(const Message& message, std::string_view bytes);
  void handle_from_below(int peer, const Message& message, std::string_view bytes);
  void add_from_below(int peer, const ReadyMessage& ready);
  void add_from_below(int peer, const HostReadyMessage& host);
  void obey_requests() const;
  void take_exchanges();
  void handle_reply(const ExchangeReply& reply);
  void take_submissions();
  SetEngine& member_engine_of(std::uint32_t set);
  void announce(SetEngine& set, TimePoint now, bool shutdown);
  void add_ready(SetEngine& set, int rank, const ReadyMessage& ready);
  void negotiate();
  void decide();
  void decide(SetEngine& set);
  void depart(FailureMessage departure);
  void apply(SetEngine& set, const DecisionMessage& decision);
  void follow_schedule();
  void conclude();
  void tell_finished();
  void inspect();
  void inspect_shutdown(TimePoint now);
  void report_stalls(TimePoint now);
  void inspect_arbiter(TimePoint now);
  void tell_stalled(const std::vector<StalledOperation>& stalled) const;
  ArbiterWatch::Awaited awaited() const;
  std::string pending_text() const;

  // After the loop.
  FailureResolver resolver() const { return {tree_, *log_, pending_text()}; }
  FailureMessage departure_of_this_rank() const;
  void die(const GroupFailure& seen) noexcept;
  void fail_everything(const FailureMessage& failure);
  void stop();
  void end(bool graceful, TimePoint deadline);
  void end_anyhow(bool graceful) noexcept;
  Stats live_stats() const;

  // Constant after construction, or made for any thread.
  const RuntimeOptions options_;
  const std::shared_ptr<Logger> log_;
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

  // Of whoever runs the loop, but for what these classes say of other threads.
  SetEngines sets_;
  ScheduleRunner schedule_;
  RunningOperations operations_;
  OwnExchanges exchanges_;
  std::optional<Arbiter> arbiter_;  ///< rank 0 only
  ArbiterWatch watch_;              ///< other ranks only
  StopAgreement stop_;
  bool has_left_ = false;  ///< in a callback
  Driver driver_;

  // Guarded by stats_mutex_.
  mutable std::mutex stats_mutex_;
  std::optional<Stats> final_stats_;
  std::vector<std::function<StatsGroup()>> more_stats_;
};

}  // namespace ronde
