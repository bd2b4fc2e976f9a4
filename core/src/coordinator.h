// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "backend_maker.h"
#include "bootstrap.h"
#include "completion.h"
#include "control_tree.h"
#include "engine_stats.h"
#include "exchange_desk.h"
#include "failure_resolver.h"
#include "frozen_schedule.h"
#include "messages.h"
#include "ronde/error.h"
#include "ronde/log.h"
#include "ronde/runtime.h"
#include "schedule_learner.h"
#include "set_engine.h"
#include "set_info.h"
#include "stall_inspector.h"
#include "submission_queue.h"
#include "submitter.h"

namespace ronde {

/// The engine of one rank. Its loop is the protocol (docs/protocol.md):
/// receive -> take submissions -> negotiate -> advance operations -> inspect.
///
/// Note [Who runs the loop]
/// A thread of its own, which sleeps while there is nothing to do. To hand an operation over to it
/// and to be woken by it costs more than a small operation itself, so a caller that waits takes the
/// loop over (help()) for as long as it gets on, and leaves the thread asleep. engine_ is held by
/// whoever runs the loop; the thread gives it up while it sleeps. A failure that a caller meets is
/// kept for the thread, which is woken to end the group.
///
/// Note [Two agreements to stop]
/// The last decision says that nothing more will be submitted, but operations may still be in
/// progress, and a rank that dies now would leave the others in them. So every rank tells when it
/// has finished, and only when all have does anybody close; a peer that is lost before has died.
/// The same happens where a rank has shut down that others still wait for: rank 0 decides nothing
/// more, what was agreed before is finished, and then the group fails.
///
/// Note [Making a process set]
/// The thread that asks for a set makes it, so that the loop goes on meanwhile. It meets the other
/// ranks by exchanges through rank 0: first all that ask agree on the ranks, and rank 0 gives the
/// set a number (every rank between rank 0 and a member learns of it, to pass messages on); then
/// the members make its backends, with as many exchanges as these need; at last all that asked tell
/// whether that went well. Only then operations of the set are taken. A set is removed by one
/// exchange, in which every rank tells what it still has in flight there. What has begun is
/// finished also where another thread calls shutdown meanwhile: rank 0 waits for it
/// (ExchangeDesk::makes_sets), and a rank that has called shutdown is on its way there all the
/// same.
///
/// Thread-safety: run() is called once, on the coordinator thread; what is marked so may be called
/// from any thread.
class Coordinator final : public WaitHelper, public std::enable_shared_from_this<Coordinator> {
 public:
  using Clock = std::chrono::steady_clock;

  /// How long closing the connections may take once all ranks have agreed to stop.
  static constexpr std::chrono::seconds kClosingTime{30};

  explicit Coordinator(RuntimeOptions options);
  ~Coordinator() override;
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// Lives this rank's life: meets the others, loops, stops.
  void run() noexcept;

  // Any thread, from here on.

  /// Blocks until the ranks have met, at most until `deadline` (then false); throws what went
  /// wrong.
  bool wait_started(Clock::time_point deadline);
  /// Blocks until run() has ended, at most until `deadline`.
  bool wait_ended(Clock::time_point deadline);
  /// Blocks until the loop has ended, because all ranks have agreed to stop or the group is dead;
  /// for no longer than `limit`, unless that is zero.
  void wait_loop_ended(Clock::duration limit);
  /// What this rank is in by itself that keeps its start from ending; nothing if it waits for
  /// others.
  std::optional<GroupError> hanging_start() const { return backends_.hanging_start(); }
  /// Why the group died; null if it has not.
  std::exception_ptr failure() const;

  Work submit(Request request) { return submitter_->submit(std::move(request)); }
  std::vector<Work> submit_group(std::vector<Request> requests) {
    return submitter_->submit_group(std::move(requests));
  }

  // coordinator_sets.cc: on the calling thread, which they block.
  ProcessSet add_process_set(const std::vector<int>& ranks);
  ProcessSet create_process_set(const std::vector<int>& ranks, const std::string& tag);
  void remove_process_set(ProcessSet set);
  const SetTable& process_sets() const noexcept { return sets_here_; }

  void help(const WorkState& work, Stage goal, TimePoint deadline) noexcept override;
  void rouse(const WorkState& work) noexcept override;
  void note_wait() noexcept override { queue_->note_wait(); }
  bool asleep() const noexcept { return waits_.load(); }
  void request_shutdown();
  /// `why`, for the others; empty if it is not known.
  void request_leave(const std::string& why = {});
  /// A callback of an operation calls: the engine would wait for itself.
  bool is_loop_of_this_thread() const noexcept {
    return driver_.load() == std::this_thread::get_id();
  }
  /// Called there, by a rank that leaves. Waits of this rank stay as they are.
  void leave_from_within(const std::string& why) noexcept;
  void request_abort(const std::string& text);

  // Constant once wait_started() has returned.
  const Topology& topology() const noexcept { return tree_.topology(); }
  const Config& config() const noexcept { return options_.config; }
  const std::string& transport_name() const noexcept { return transport_name_; }
  std::string backend_name(DeviceKind device) const { return backends_.name_of(device); }

  Stats stats() const;
  void add_stats(std::function<StatsGroup()> part);

  /// Constant once wait_started() has returned; null if there is none.
  const std::shared_ptr<SymmetricHeap>& symmetric_heap() const noexcept {
    return backends_.symmetric_heap();
  }
  std::uint64_t joins(ProcessSet set) const { return queue_->joins(set.id); }

 private:
  // coordinator_start.cc: before the loop.
  bool try_start() noexcept;
  void start();
  void pin_thread();
  void make_board();
  Clock::duration combining_patience() const;
  void make_negotiation(SetEngine& set);
  void make_executor(SetEngine& set);

  // coordinator_drive.cc: who runs the loop, and when it sleeps.
  void live() noexcept;
  void note_loop_ended() noexcept;
  void sleep(std::unique_lock<std::mutex>& engine);
  void drive(const WorkState& work, Stage goal, TimePoint deadline);
  void look_on(const WorkState& work, Stage goal, TimePoint deadline);
  void look_again();
  bool may_sleep_in_operation() const;
  void say_asleep(bool asleep);
  std::uint64_t progress() const;
  Clock::duration patience() const;

  // coordinator.cc: the loop.
  bool cycle();
  void receive();
  Clock::time_point next_event() const;
  void handle(const Incoming& incoming);
  void handle_message(int peer, const Message& message);
  void handle_from_above(const Message& message, std::string_view bytes);
  void handle_from_below(int peer, const Message& message, std::string_view bytes);
  void obey_requests();
  void take_submissions();
  void announce(SetEngine& set, Clock::time_point now, bool shutdown);
  void add_ready(SetEngine& set, int rank, const ReadyMessage& ready);
  void negotiate();
  void decide();
  void depart(FailureMessage departure);
  void decide(SetEngine& set);
  void apply(SetEngine& set, const DecisionMessage& decision);
  void learn(DecisionMessage& decision);
  void freeze(const ScheduleMessage& schedule);
  void follow_schedule();
  void advance_operations();
  void conclude();
  void tell_finished();
  std::vector<int> unfinished() const;
  void inspect();
  void inspect_waiting(Clock::time_point now);
  void inspect_shutdown(Clock::time_point now);
  void inspect_late_sets() const;
  std::vector<WaitingOperation> waiting() const;
  bool awaits_anything() const;
  bool may_stop() const;
  void inspect_arbiter(Clock::time_point now);
  std::optional<Clock::time_point> awaits_arbiter_since() const;
  std::optional<Clock::time_point> arbiter_deadline() const;
  std::optional<Clock::time_point> silent_since() const;
  std::optional<Clock::time_point> silence_deadline() const;
  void warn_of_silence(Clock::time_point now);
  std::optional<Clock::time_point> shutdown_deadline() const;
  std::optional<WaitingOperation> waiting_shutdown() const;
  Clock::duration head_start() const;
  bool busy() const;
  bool may_pause() const;
  std::string pending_text() const;

  // coordinator_sets.cc: process sets. Of the thread that asks for one:
  ProcessSet make_set(const ExchangeKey& key, const std::vector<int>& ranks);
  void hand_over(MadeSet made);
  void finish_set(const ExchangeKey& key, const std::string& error);
  void expect_callable(const char* function) const;
  bool asks_for_sets();
  std::shared_ptr<OwnExchange> ask(ExchangeKey key, std::string blob);
  std::shared_ptr<OwnExchange> meet(ExchangeKey key, std::string blob);
  // Of the loop:
  void take_exchanges();
  void answer_exchanges();
  void handle_reply(const ExchangeReply& reply);
  void finish_own(const ExchangeReply& reply, MadeSet removed);
  void end_exchanges(std::exception_ptr error) noexcept;
  void learn_set(const ExchangeReply& reply);
  MadeSet forget_set(std::uint32_t id);
  void install_sets();
  SetEngine& engine_of(std::uint32_t set);
  SetEngine& member_engine_of(std::uint32_t set);

  // coordinator_stop.cc: after the loop.
  FailureMessage departure_of_this_rank() const;
  FailureResolver resolver() const;
  void die(const GroupFailure& seen) noexcept;
  void fail_everything(const FailureMessage& failure);
  void stop();
  void end(bool graceful, Clock::time_point deadline);
  void end_anyhow(bool graceful) noexcept;
  Stats live_stats() const;

  // Constant after construction.
  const RuntimeOptions options_;
  const std::shared_ptr<Logger> log_;
  const std::shared_ptr<SubmissionQueue> queue_;
  const Clock::time_point start_deadline_;  ///< the transport may set an earlier one

  // Written before wait_started() returns, constant from then on.
  ControlTree tree_;  ///< its messages: of whoever runs the loop
  std::optional<Bootstrap> bootstrap_;
  BackendMaker backends_;
  std::string transport_name_;
  std::unique_ptr<Board> board_;              ///< null where the ranks share no memory
  std::unique_ptr<FrozenSchedule> schedule_;  ///< null without a board, or if never to be used
  bool outnumbers_cores_ = false;             ///< the ranks of this host do

  // Guarded by engine_, once started.
  std::mutex engine_;
  bool is_live_ = false;               ///< the loop may be run
  std::exception_ptr driver_failure_;  ///< met by a caller that ran it
  Clock::time_point sleeps_until_{};   ///< the thread does
  Clock::time_point hot_until_{};      ///< an operation in progress is polled without sleeping
  std::unique_ptr<ScheduleLearner> learner_;  ///< rank 0 only
  /// By number. The global set is always there.
  std::map<std::uint32_t, std::unique_ptr<SetEngine>> sets_;
  SetEngine& global_;
  std::set<std::uint32_t> changed_sets_;  ///< rank 0 only: what may be decided on
  std::vector<SetEngine*> running_;       ///< those with an executor, the global one first
  std::unique_ptr<ExchangeDesk> desk_;    ///< rank 0 only
  std::map<ExchangeKey, std::shared_ptr<OwnExchange>> exchanges_;
  StallInspector stalls_;
  Clock::time_point next_inspection_{};
  Clock::time_point heard_from_above_{};   ///< the last time
  Clock::time_point warned_of_silence_{};  ///< the last time
  std::optional<Clock::time_point> shutdown_since_;
  bool agreed_to_stop_ = false;               ///< the last decision has been applied
  std::optional<FailureMessage> departure_;   ///< that is why: the group fails once all finished
  bool told_finished_ = false;                ///< and nothing is in progress on this rank
  bool all_finished_ = false;                 ///< nor on any other
  std::vector<bool> finished_;                ///< rank 0 only, by rank
  std::vector<std::int32_t> newly_finished_;  ///< of this rank and those below it, yet to be told
  bool has_left_ = false;                     ///< in a callback

  EngineCounters counters_;

  // Any thread.
  SetTable sets_here_;
  std::optional<Submitter> submitter_;  ///< constant once wait_started() has returned
  std::atomic<std::uint64_t> sets_added_{0};
  std::atomic<bool> has_exchanges_{false};  ///< asked_ or made_ is not empty
  std::atomic<std::thread::id> driver_{};   ///< who runs the loop
  std::atomic<bool> uses_schedule_{false};  ///< schedule_ is there, and stays
  std::atomic<bool> asleep_{false};         ///< the thread has to be woken to see anything new
  std::atomic<bool> waits_{false};          ///< it does sleep
  std::atomic<bool> shutdown_requested_{false};
  std::atomic<bool> leave_requested_{false};
  std::atomic<bool> abort_requested_{false};

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  bool loop_ended_ = false;
  bool ended_ = false;
  std::exception_ptr start_error_;
  std::exception_ptr failure_;
  std::optional<std::string> abort_text_;
  std::string leave_reason_;
  std::optional<Stats> final_stats_;
  std::vector<std::function<StatsGroup()>> more_stats_;
  std::vector<std::shared_ptr<OwnExchange>> asked_;  ///< yet to be taken by the loop
  std::vector<MadeSet> made_;                        ///< the same
  std::exception_ptr takes_no_exchanges_;            ///< why, once the loop has ended
};

}  // namespace ronde
