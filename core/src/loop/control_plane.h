// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/src/agree/frozen_schedule.h"
#include "core/src/agree/messages.h"
#include "core/src/base/counter.h"
#include "core/src/base/monotonic_clock.h"
#include "core/src/group/control_tree.h"
#include "core/src/group/engine_life.h"
#include "core/src/group/failure_resolver.h"
#include "core/src/loop/arbiter.h"
#include "core/src/loop/process_set_maker.h"
#include "core/src/loop/set_engines.h"
#include "core/src/op/submission_queue.h"
#include "ronde/log.h"
#include "ronde/plugin/board.h"
#include "ronde/runtime.h"
#include "ronde/stats.h"

namespace ronde {

/// Counters of the engine of a rank outside its process sets.
struct EngineCounters {
  Counter cycles, sleeps, driven_by_callers, messages, decisions, ready_messages, stall_reports;
  Counter sets_made, sets_removed;
  Counter tunings, fusion_bytes, cycle_time_us, freeze_after_steps;  ///< since the last tuning
};

/// The control plane of one rank, in all process sets: agrees with the other ranks, by messages or
/// by a frozen schedule, on which submissions run, passes those to the executors, and ends the
/// group in order. Throws GroupFailure where the group cannot go on.
///
/// Thread-safety: none, only Loop calls it; functions that any thread may call are marked.
class ControlPlane {
 public:
  /// The references outlive it.
  ControlPlane(const RuntimeOptions& options, const Logger& log, const ControlTree& tree,
               SubmissionQueue& queue, const EngineLife& life);

  /// To be called once the backends are made. `board`: null if the ranks share no memory.
  void start(Board* board);

  // A round of the loop calls these in this order.

  /// Handles all messages that have arrived, and a request of the program to leave or to abort.
  void receive(TimePoint now);
  /// Collects exchanges and submissions of this rank, and announces what has to be negotiated.
  void collect(TimePoint now);
  /// Decides on rank 0; forwards announcements on leaders.
  void agree(TimePoint now);
  /// Reports operations that have ended, and after the last decision that this rank has finished.
  /// `is_busy`: operations are still in progress.
  void report_ends(bool is_busy);
  void inspect(TimePoint now);
  /// Returns whether all ranks have finished, so that this was the last round.
  bool has_ended() const noexcept { return stop_.all_finished; }

  /// The part of a round that needs no messages: starts what a frozen schedule has committed.
  void follow_schedule();
  bool is_frozen() const noexcept { return schedule_ && schedule_->is_frozen(); }
  /// Returns when the next round is due; `now`: at once, nullopt: not before the loop is woken.
  std::optional<TimePoint> next_event(TimePoint now, bool is_busy) const;

  /// Handles the end of a step of the program on this rank, from any thread.
  void on_step();

  SetEngines& sets() noexcept { return sets_; }
  const SetEngines& sets() const noexcept { return sets_; }
  /// Null where the ranks share no memory, or if no schedule is ever frozen. Constant after
  /// start().
  const FrozenSchedule* schedule() const noexcept { return schedule_.get(); }
  OwnExchanges& exchanges() noexcept { return exchanges_; }
  /// Returns why the loop has ended though no rank has failed; nothing after a shutdown.
  const std::optional<FailureMessage>& departure() const noexcept { return stop_.departure; }

  /// Returns, on rank 0, the reports of all ranks once they have finished: Runtime::shutdown.
  const std::map<int, std::string>& reports() const noexcept { return stop_.reports; }

  /// Any thread may use it.
  StallLimit& stall_limit() noexcept { return stall_limit_; }
  EngineCounters& counters() noexcept { return counters_; }
  /// Returns the counters of all parts but the transport, from any thread.
  Stats stats() const;

  FailureResolver resolver() const { return {tree_, log_, pending_text()}; }
  /// Returns the message to the other ranks when this rank leaves, or has aborted.
  FailureMessage departure_of_this_rank() const {
    return life_.departure_of(tree_.rank(), pending_text());
  }
  /// Aborts the backends and ends every operation and exchange of this rank with `error`, as the
  /// group is dead.
  ///
  /// Note [Buffers after a group error]
  /// A library may write into the memory of an operation that it will never complete. So backends
  /// only see memory that Ronde owns and abandons on failure (PackingBackend), or must prevent it
  /// themselves (Backend::abort); a user's buffers are free once the Work is done, with or without
  /// an error. Symmetric buffers are not: a peer that has yet to learn of the failure may write its
  /// last chunk there, into memory that stays mapped.
  void fail(const std::exception_ptr& error);

 private:
  void handle(const Incoming& incoming, TimePoint now);
  void handle_message(int peer, const Message& message);
  [[noreturn]] void fail_by_nonsense_from_above(const char* what) const;
  void handle_from_above(const Message& message, std::string_view bytes, TimePoint now);
  void handle_from_below(int peer, const Message& message, std::string_view bytes, TimePoint now);
  void add_from_below(int peer, const HostReadyMessage& host, TimePoint now);
  void send_checksums();
  void compare(const ResultsMessage& results);
  void expect_same_results() const;
  void start_exchanges(TimePoint now);
  void handle_reply(const ExchangeReply& reply);
  void announce_submissions(TimePoint now);
  void report_stall_limit();
  void freeze(const ScheduleMessage& message, TimePoint now);
  void announce(SetEngine& set, TimePoint now, bool shutdown);
  void add_ready(SetEngine& set, const Negotiator::Ranks& ranks, const ReadyMessage& ready,
                 TimePoint now);
  void decide(TimePoint now);
  void decide(SetEngine& set, TimePoint now);
  void announce_departure(FailureMessage departure);
  void apply(SetEngine& set, const DecisionMessage& decision, TimePoint now);
  void apply_tuning(const Tuning& tuning);
  void inspect_shutdown(TimePoint now);
  std::optional<TimePoint> shutdown_limit() const;
  void inspect_arbiter(TimePoint now);
  void publish_stalls(const std::vector<StalledOperation>& stalled) const;
  // On ranks other than rank 0. `awaited`: since when this rank waits for a decision or a reply.
  std::optional<TimePoint> awaited() const;
  std::optional<TimePoint> silent_since(std::optional<TimePoint> awaited) const;
  std::optional<TimePoint> silence_deadline(std::optional<TimePoint> awaited) const;
  std::optional<TimePoint> answer_deadline(std::optional<TimePoint> awaited) const;
  std::string pending_text() const;

  const RuntimeOptions& options_;
  const Logger& log_;
  const ControlTree& tree_;
  SubmissionQueue& queue_;
  const EngineLife& life_;
  EngineCounters counters_;
  StallLimit stall_limit_;
  Duration reported_limit_;  ///< as rank 0 knows it

  SetEngines sets_;
  std::unique_ptr<FrozenSchedule> schedule_;
  OwnExchanges exchanges_;
  std::optional<FailureMessage> difference_;  ///< the first one of results; rank 0 only
  std::optional<Arbiter> arbiter_;            ///< rank 0 only
  TimePoint last_message_{};                  ///< when the last message came from above
  TimePoint warned_{};                        ///< when this rank last warned of rank 0's silence
  StopAgreement stop_;
};

}  // namespace ronde
