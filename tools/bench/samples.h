// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <vector>

namespace ronde::tool {

/// The time of each of several calls, in microseconds.
using Samples = std::vector<double>;

/// The smallest sample that at least `share` of all do not exceed (the nearest rank, no
/// interpolation). At least one sample.
inline double percentile(Samples samples, double share) {
  const auto count = static_cast<double>(samples.size());
  const auto rank = static_cast<std::ptrdiff_t>(std::max(std::ceil(share * count), 1.0));
  const auto position = samples.begin() + rank - 1;
  std::nth_element(samples.begin(), position, samples.end());
  return *position;
}

inline double median(const Samples& samples) {
  return percentile(samples, 0.5);
}

/// Microseconds that `call` takes on this rank.
template <typename Call>
double time_of(const Call& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace ronde::tool
