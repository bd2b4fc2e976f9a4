// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

namespace ronde::test {

/// A vector that Adasum made.
struct Combined {
  std::vector<double> values;
  /// An error of `e` times these, in each input and each level, moves the values by no more than
  /// about `e` times these.
  std::vector<double> magnitudes;
};

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

/// Equation of Maleki et al., arXiv:2006.02924, section 3.
inline Combined adasum_of_two(const Combined& a, const Combined& b) {
  const double aa = dot(a.values, a.values);
  const double bb = dot(b.values, b.values);
  const double ab = dot(a.values, b.values);
  const bool any_zero = aa == 0 || bb == 0;
  const double factor_a = any_zero ? 1 : 1 - ab / (2 * aa);
  const double factor_b = any_zero ? 1 : 1 - ab / (2 * bb);
  // By how much errors of the vectors move the dot products.
  const double moved = 2 * (std::sqrt(dot(a.magnitudes, a.magnitudes) * bb) +
                            std::sqrt(dot(b.magnitudes, b.magnitudes) * aa));
  const double weight_a = std::fabs(factor_a) + (any_zero ? 0 : moved / aa);
  const double weight_b = std::fabs(factor_b) + (any_zero ? 0 : moved / bb);
  Combined result = a;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    result.values[i] = factor_a * a.values[i] + factor_b * b.values[i];
    result.magnitudes[i] = weight_a * a.magnitudes[i] + weight_b * b.magnitudes[i];
  }
  return result;
}

/// Of the vectors of all ranks, in double precision: those before the last power of two, with the
/// rest.
inline Combined adasum_of(std::span<const std::vector<double>> vectors) {
  if (vectors.size() == 1) {
    Combined one{vectors[0], vectors[0]};
    for (double& value : one.magnitudes) value = std::fabs(value);
    return one;
  }
  const std::size_t half = std::bit_floor(vectors.size() - 1);
  return adasum_of_two(adasum_of(vectors.first(half)), adasum_of(vectors.subspan(half)));
}

/// What to multiply magnitudes by: each level, and the scaling at both ends, rounds a few times.
inline double adasum_error(std::size_t ranks, bool in_f64) {
  const auto levels = static_cast<double>(std::bit_width(ranks));
  return (4 * levels + 4) * (in_f64 ? 0x1p-52 : 0x1p-24);
}

}  // namespace ronde::test
