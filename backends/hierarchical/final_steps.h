// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>

#include "ronde/collective.h"
#include "ronde/kernels.h"

namespace ronde::hierarchical {

/// The scaling of a host's sum, and of the sum over all hosts.
struct FinalSteps {
  Scaling within_host;
  Scaling over_hosts;
};

/// Splits `final` into two steps. If the sums of hosts are rounded to a wire type, they are first
/// scaled to about the size of their inputs: a sum may overflow f16 although the average does not,
/// and a sum scaled further would underflow. `converts`: the call has a wire_dtype. `largest_host`:
/// the number of its ranks.
inline FinalSteps final_steps(ReduceOp op, bool converts, const Scaling& final,
                              std::size_t largest_host) {
  const double scale = std::abs(final.factor) / final.divisor;
  if (!converts || op != ReduceOp::Sum || scale >= 1) return {{}, final};
  // A power of two scales without rounding.
  const auto power = static_cast<double>(std::bit_ceil(largest_host));
  if (scale * power >= 1) return {final, {}};
  return {{1 / power, 1}, {final.factor * power, final.divisor}};
}

}  // namespace ronde::hierarchical
