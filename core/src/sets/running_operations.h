// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "core/src/sets/set_engines.h"

namespace ronde {

/// The operations in progress of all process sets: polls them, and says when to poll again.
///
/// Thread-safety: none; owned by whoever runs the loop.
class RunningOperations {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RunningOperations(const SetEngines& sets) : sets_(sets) {}

  /// `has_board`: ranks of this host can wake each other. `outnumbers_cores`: not all of them can
  /// run at once.
  void start(bool has_board, bool outnumbers_cores);

  bool busy() const;
  /// Changes whenever one of them got on.
  std::uint64_t progress() const;
  /// How long a thread that helps may see nothing happen before it sleeps.
  Clock::duration patience() const noexcept { return patience_; }

  /// Polls until a slice of time passes without an operation's end, or all have ended.
  void advance();
  /// Polls operations that may sleep once more, after this rank has announced its sleep; they are
  /// hot again if they made progress.
  void look_again();
  /// Backend::tend(): also while other operations are in progress, for which its peers may wait.
  std::optional<Clock::duration> tend() const;
  /// The time of the next poll: now while they are hot, or while nothing wakes this rank; nullopt
  /// if there are none.
  std::optional<Clock::time_point> next_look(Clock::time_point now) const;
  /// Nothing but a descriptor tells of them, which prepare_sleep() gives.
  bool sleep_on_descriptor() const { return busy() && waiting() == Waiting::Descriptor; }
  /// A descriptor for Transport::wait(), or -1; nothing if they can be polled now.
  std::optional<int> prepare_sleep() const;

  /// Throws GroupFailure for one that takes longer than its timeout, or than `limit`. `rank`: this
  /// one.
  void inspect(Clock::time_point now, std::optional<Clock::duration> limit, int rank) const;

 private:
  /// How to wait for all of them: in the most impatient of their ways.
  Waiting waiting() const;
  void give_way();

  const SetEngines& sets_;
  bool has_board_ = false;
  Clock::duration patience_{};
  Clock::time_point hot_until_{};      ///< polled without sleeping
  int long_yields_ = 0;                ///< in a row
  Clock::time_point crowded_until_{};  ///< others compute on this core
};

}  // namespace ronde
