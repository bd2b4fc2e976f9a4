// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "images/photographs.h"

namespace edsr {

/// Training time that every rank sees alike: rank 0's clock, broadcast about once a second. Ranks
/// that asked their own clocks would stop at different steps and wait for each other for ever.
class GroupClock {
 public:
  /// Starts at `seconds`, what earlier runs have used.
  explicit GroupClock(double seconds);

  /// As of the last agreement; equal on every rank.
  double seconds() const { return agreed_; }

  /// To be called once after each step on every rank; agrees when it is time to and then returns
  /// true. Collective.
  bool step_done();

  /// Agrees now. Collective.
  void agree();

 private:
  using Clock = std::chrono::steady_clock;

  double local_seconds() const;

  Clock::time_point start_ = Clock::now();
  double before_;
  double agreed_;
  std::int64_t interval_ = 1;  ///< steps from one agreement to the next
  std::int64_t steps_since_ = 0;
};

/// Throws InputError on every rank, naming those that differ from rank 0, unless all ranks hold
/// the same photographs. Collective.
void require_same_photographs(const std::vector<Photograph>& training,
                              const std::vector<Photograph>& held_out);

}  // namespace edsr
