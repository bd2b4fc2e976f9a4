// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>

#include "ronde/collective.h"
#include "ronde/kernels.h"

namespace ronde::hierarchical {

/// The scaling of the sum of a host, and then of the sum of all hosts.
struct FinalSteps {
  Scaling within_host;
  Scaling over_hosts;
};

/// Splits `final` in two steps. Where the sums of hosts are rounded to a wire type, they are scaled
/// to the size of its inputs before: a sum may be too large for f16 although the average is not,
/// and a smaller one would vanish. `converts`: there is a wire_dtype. `largest_host`: its ranks.
inline FinalSteps final_steps(ReduceOp op, bool converts, const Scaling& final,
                              std::size_t largest_host) {
  const double scale = std::abs(final.factor) / final.divisor;
  if (!converts || op != ReduceOp::Sum || scale >= 1) return {{}, final};
  // A power of two: without rounding.
  const auto power = static_cast<double>(std::bit_ceil(largest_host));
  if (scale * power >= 1) return {final, {}};
  return {{1 / power, 1}, {final.factor * power, final.divisor}};
}

}  // namespace ronde::hierarchical
