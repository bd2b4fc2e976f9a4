// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "core/src/agree/bit_vector.h"
#include "core/src/agree/fusion_plan.h"
#include "core/src/agree/messages.h"
#include "core/src/base/monotonic_clock.h"

namespace ronde {

/// Detects in rank 0's decisions that the ranks repeat the same operations, and makes the plan:
/// Note [Frozen schedule].
///
/// A part ends where an operation comes again. A round is one part, or a pattern of up to
/// kMostParts (two steps of one model, then one of another). After enough equal rounds the plan is
/// the last round's order, fused within each part; operations that were submitted after a wait stay
/// apart from those before it, as the program may need the result of one for the other.
///
/// Thread-safety: none; owned by whoever runs the loop on rank 0.
class ScheduleLearner {
 public:
  static constexpr std::size_t kMostParts = 8;

  /// `steps`: how many equal rounds make a plan; 0: none is ever made.
  ScheduleLearner(std::uint64_t steps, std::uint64_t fusion_bytes, std::size_t most_buckets);

  /// One operation of a decision.
  struct Operation {
    std::uint32_t slot = 0;
    bool is_named = true;
    bool contributed = true;
    PlanItem plan;
  };

  /// Adds the operations of one decision in the order in which they run; `after_wait`: rank 0 had
  /// waited for a result before it submitted the first of them. Returns the plan once it is made.
  std::optional<ScheduleMessage> observe(const std::vector<Operation>& operations, bool after_wait,
                                         TimePoint now);

  /// Drops all rounds seen, as a decision contained something that no plan can hold.
  void forget();

  /// Handles the end of a plan after `rounds`.
  void on_thaw(bool by_wait, std::uint64_t rounds);

  /// Starts over with other values of the constructor's arguments.
  void restart(std::uint64_t steps, std::uint64_t fusion_bytes);

 private:
  struct Part {
    std::vector<Operation> operations;
    std::vector<std::size_t> runs;  ///< indexes at which a run of concurrent operations begins
    BitVector slots;
    bool has_named = false;
    TimePoint start;
    // Set once it has ended:
    std::vector<std::uint32_t> signature;
    Duration duration{};
  };

  void end_part(TimePoint now);
  bool is_complete(std::size_t parts) const;
  ScheduleMessage plan(std::size_t parts) const;
  void add_buckets(const Part& part, ScheduleMessage& schedule) const;

  std::uint64_t steps_;
  std::uint64_t fusion_bytes_;
  const std::size_t most_buckets_;
  std::uint64_t needed_;  ///< equal rounds for the next plan: more after each that did not last
  bool merges_ = true;    ///< runs may extend across decisions
  Part current_;
  std::deque<Part> ended_;  ///< the last kMostParts
  /// [i]: the number of latest parts that each equal the part i + 1 before.
  std::array<std::uint64_t, kMostParts> alike_{};
};

}  // namespace ronde
