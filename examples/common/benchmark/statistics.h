// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

// Of at least one value.
namespace example {

inline double mean(const std::vector<double>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return sum / static_cast<double>(values.size());
}

/// The standard deviation of the values themselves, not an estimate from a sample.
inline double standard_deviation(const std::vector<double>& values) {
  const double center = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - center) * (value - center);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

/// Of an even number of values the mean of the two in the middle.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace example
