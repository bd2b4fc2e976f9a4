// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/src/engine/arbiter.h"
#include "core/src/engine/own_exchanges.h"
#include "core/src/engine/schedule_runner.h"
#include "core/src/group/control_tree.h"
#include "core/src/group/engine_life.h"
#include "core/src/group/failure_resolver.h"
#include "core/src/group/stop_agreement.h"
#include "core/src/negotiate/messages.h"
#include "core/src/queue/submission_queue.h"
#include "core/src/sets/engine_stats.h"
#include "core/src/sets/result_verification.h"
#include "core/src/sets/running_operations.h"
#include "core/src/sets/set_engines.h"
#include "ronde/log.h"
#include "ronde/runtime.h"

namespace ronde {

/// The loop of one rank. It is the protocol (docs/protocol.md): receive -> take exchanges and
/// submissions -> negotiate -> advance operations -> conclude -> inspect. It throws GroupFailure
/// where the group cannot go on.
///
/// Thread-safety: none; Driver says who runs it. What its parts say of other threads holds.
class Coordinator {
 public:
  using Clock = std::chrono::steady_clock;
  using TimePoint = Clock::time_point;

  /// The references outlive it.
  Coordinator(const RuntimeOptions& options, const Logger& log, const ControlTree& tree,
              SubmissionQueue& queue, const EngineLife& life, EngineCounters& counters);

  /// The ranks have met and the backends are made. `has_board`: the ranks share memory.
  void start(bool has_board, bool outnumbers_cores);

  /// One round. False: it was the last one.
  bool cycle();
  /// The part of a round that needs no messages: follows a frozen schedule, and advances
  /// operations.
  void follow() {
    follow_schedule();
    operations_.advance();
  }
  /// A step of the program ends on this rank: any thread.
  void note_step();
  /// The time of the next thing to do if nobody wakes the loop; a past time if at once.
  TimePoint next_event() const;

  SetEngines& sets() noexcept { return sets_; }
  const SetEngines& sets() const noexcept { return sets_; }
  ScheduleRunner& schedule() noexcept { return schedule_; }
  const ScheduleRunner& schedule() const noexcept { return schedule_; }
  RunningOperations& operations() noexcept { return operations_; }
  OwnExchanges& exchanges() noexcept { return exchanges_; }
  /// The reason why the loop has ended though no rank has failed; nothing after a shutdown.
  const std::optional<FailureMessage>& departure() const noexcept { return stop_.departure; }

  /// On rank 0, once all have finished: Runtime::shutdown.
  const std::map<int, std::string>& reports() const noexcept { return stop_.reports; }

  FailureResolver resolver() const { return {tree_, log_, pending_text()}; }
  /// The message to the others once this rank leaves.
  FailureMessage departure_of_this_rank() const {
    return life_.departure_of(tree_.rank(), pending_text());
  }
  /// Ends everything that this rank waits for with `error`, as the group is dead.
  void fail(const std::exception_ptr& error);

 private:
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
  void tune();
  void adopt(const Tuning& tuning);
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

  const RuntimeOptions& options_;
  const Logger& log_;
  const ControlTree& tree_;
  SubmissionQueue& queue_;
  const EngineLife& life_;
  EngineCounters& counters_;

  SetEngines sets_;
  ScheduleRunner schedule_;
  RunningOperations operations_;
  ResultVerification verification_;
  OwnExchanges exchanges_;
  std::optional<Arbiter> arbiter_;  ///< rank 0 only
  ArbiterWatch watch_;              ///< other ranks only
  StopAgreement stop_;
};

}  // namespace ronde
