// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "ronde/dtype.h"

namespace ronde::test {

/// The number of a half type that is nearest to `value`, the even one of two, as a double. Beyond
/// the largest it is infinite. In double precision, and knows nothing of Ronde's own conversions.
inline double rounded_to(DataType half, double value) {
  const int fraction_bits = half == DataType::F16 ? 10 : 7;
  const int least_exponent = half == DataType::F16 ? -14 : -126;
  const int most_exponent = half == DataType::F16 ? 15 : 127;
  if (value == 0.0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), least_exponent);
  // In units of the last place, which is exact; nearbyint() rounds to even.
  const double units = std::nearbyint(std::ldexp(value, fraction_bits - exponent));
  const double rounded = std::ldexp(units, exponent - fraction_bits);
  const double most = std::ldexp(2.0, most_exponent);
  return std::abs(rounded) < most ? rounded
                                  : std::copysign(std::numeric_limits<double>::infinity(), rounded);
}

}  // namespace ronde::test
