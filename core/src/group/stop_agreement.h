// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/src/agree/messages.h"
#include "core/src/group/control_tree.h"
#include "ronde/config.h"
#include "ronde/runtime.h"

namespace ronde {

/// How far the ranks have agreed to stop, as this rank knows it.
///
/// Note [Two agreements to stop]
/// The last decision means that no rank submits anything more, but operations may still be in
/// progress, and a rank that dies now would leave the others in them. So every rank reports when it
/// has finished, and closes only when all have; a peer that is lost before has died. The same
/// happens if other ranks still wait for one that has shut down: rank 0 makes no more decisions,
/// agreed operations finish, and then the group fails.
///
/// Thread-safety: none; owned by whoever runs the loop.
struct StopAgreement {
  /// When shutdown() was called: on this rank; on rank 0, by any rank.
  std::optional<std::chrono::steady_clock::time_point> shutdown_since = {};
  bool agreed = false;                           ///< the last decision has been applied
  std::optional<FailureMessage> departure = {};  ///< why the group fails once all have finished
  bool reported_finished = false;                ///< this rank has reported that it runs nothing
  bool all_finished = false;                     ///< no rank runs anything
  /// This rank and those below it that have finished, to be sent.
  FinishedMessage newly_finished = {};
  std::map<int, std::string> reports = {};  ///< on rank 0: by rank that has finished

  void add_finished(int rank, std::string report) {
    newly_finished.ranks.push_back(rank);
    newly_finished.reports.push_back(std::move(report));
  }
  bool must_report_finished(bool busy) const noexcept {
    return agreed && !reported_finished && !busy;
  }
};

/// How much longer a rank waits than its parent, in shutdown and for stalled operations, as a rank
/// nearer to rank 0 knows better which rank is late.
inline constexpr std::chrono::seconds kHeadStart{2};

/// For texts.
inline constexpr const char* kShutdownLimit =
    " within the limit of a rank in shutdown() (RONDE_SHUTDOWN_TIMEOUT_S, or that of its call)";

/// Checks, on a rank other than rank 0, that rank 0 answers.
///
/// Thread-safety: none; owned by whoever runs the loop.
class ArbiterWatch {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// The waits of this rank.
  struct Awaited {
    std::optional<TimePoint> decision;  ///< since when it waits for a decision or a reply
    std::optional<TimePoint> shutdown;  ///< since when it waits for the end of the shutdown
  };

  ArbiterWatch(const Config& config, const ControlTree& tree) : config_(config), tree_(tree) {}

  void record_message(TimePoint now) noexcept { last_message_ = now; }

  /// Returns when to warn of rank 0's silence: it would have reported a stall by then.
  std::optional<TimePoint> silence_deadline(const Awaited& awaited) const;
  /// Returns the time by which rank 0 must have decided what this rank waits for, or have failed
  /// the group.
  std::optional<TimePoint> answer_deadline(const Awaited& awaited) const;

  /// Returns the silence as a stall, for a warning that is logged now.
  StalledOperation warn(const Awaited& awaited, TimePoint now);

 private:
  std::optional<TimePoint> silent_since(const Awaited& awaited) const;

  const Config& config_;
  const ControlTree& tree_;
  TimePoint last_message_{};  ///< when the last message came from above
  TimePoint warned_{};        ///< when the last warning was logged
};

}  // namespace ronde
