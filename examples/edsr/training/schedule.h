// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "edsr_options.h"

namespace edsr {

/// When training ends, by the step and by seconds trained, and how the learning rate falls, by the
/// step alone: a slow machine learns as much from an image. Every rank must be given the same
/// seconds (rank 0's), or the ranks would part.
class Schedule {
 public:
  explicit Schedule(const Options& options)
      : steps_(options.steps),
        seconds_(options.minutes * 60),
        learning_rate_(options.learning_rate),
        halve_every_(options.lr_halve_every) {}

  /// How much of the budget is used, 1 when training ends.
  double fraction(std::int64_t step, double seconds) const {
    const double by_steps = steps_ > 0 ? ratio(static_cast<double>(step), steps_) : 0;
    const double by_time = seconds_ > 0 ? seconds / seconds_ : 0;
    return std::max(by_steps, by_time);
  }

  bool finished(std::int64_t step, double seconds) const { return fraction(step, seconds) >= 1; }

  double learning_rate(std::int64_t step) const {
    return std::ldexp(learning_rate_, -static_cast<int>(step / halve_every_));
  }

 private:
  static double ratio(double part, std::int64_t whole) { return part / static_cast<double>(whole); }

  std::int64_t steps_;
  double seconds_;
  double learning_rate_;
  std::int64_t halve_every_;
};

}  // namespace edsr
