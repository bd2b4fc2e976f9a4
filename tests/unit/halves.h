// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "ronde/dtype.h"

namespace ronde::test {

inline constexpr DataType kHalves[] = {DataType::F16, DataType::BF16};

/// What 16 bits mean, by the definition of the format alone.
inline double half_value(DataType half, std::uint32_t bits) {
  const int mantissa_bits = half == DataType::F16 ? 10 : 7;
  const int most_exponent = (1 << (15 - mantissa_bits)) - 1;  // of infinities and NaN
  const auto mantissa = static_cast<int>(bits & ((1U << mantissa_bits) - 1));
  const auto exponent = static_cast<int>((bits & 0x7fff) >> mantissa_bits);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int scale = (half == DataType::F16 ? -14 : -126) - mantissa_bits;
  if (exponent == most_exponent) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa, scale);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, scale + exponent - 1);
}

/// Every number of the half type, the middle to the next one, and what lies next to both in single
/// and in double precision: a rounding to f32 on the way would make a tie of the latter.
inline std::vector<double> doubles_around_halves(DataType half) {
  std::vector<double> all = {HUGE_VAL, -HUGE_VAL, std::nan(""), -std::nan(""), 1e300,   -1e300,
                             5e-324,   -5e-324,   65504.0,      65519.999,     65520.0, 0x1.ffp127,
                             0x1p128,  -0x1p128,  0x1p-150,     0x1.8p-150};
  for (std::uint32_t bits = 0; bits < 0xffff; ++bits) {
    const double low = half_value(half, bits);
    for (const double value : {low, low + (half_value(half, bits + 1) - low) / 2}) {
      const auto single = static_cast<float>(value);
      all.insert(all.end(),
                 {std::nextafter(value, -HUGE_VAL), value, std::nextafter(value, HUGE_VAL),
                  value * (1 + 0x1p-26), std::nextafterf(single, -HUGE_VALF),
                  std::nextafterf(single, HUGE_VALF)});
    }
  }
  return all;
}

}  // namespace ronde::test
