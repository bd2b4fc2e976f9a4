// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/data/table.h"
#include "fixed_point.h"

namespace kmeans {

/// This rank's part of the points, in quanta: see Note [Exact sums].
struct Points {
  example::Part part;
  std::int64_t rows = 0;  ///< over all ranks
  std::int64_t columns = 0;
  int value_bits = 0;
  int fraction_bits = 0;       ///< a value of 2^fraction_bits quanta is 1
  std::vector<double> values;  ///< [own(), columns], whole numbers

  std::int64_t own() const { return part.count(rows); }
  /// Of all points, the index of the part's `local`th.
  std::int64_t row(std::int64_t local) const { return part.rank + local * part.ranks; }
  std::span<const double> point(std::int64_t local) const {
    return std::span(values).subspan(static_cast<std::size_t>(local * columns),
                                     static_cast<std::size_t>(columns));
  }
};

/// Rounds the table's values to quanta. Collective: the quantum depends on the largest value of all
/// ranks. Throws InputError if the ranks have read different files.
Points make_points(example::Table table, const example::Part& part);

/// The values of point `row`, wherever it is. Collective.
std::vector<double> fetch_point(const Points& points, std::int64_t row);

/// From `from` to `to`, squared, in squared quanta; summed in the order of the columns.
double squared_distance(std::span<const double> from, std::span<const double> to);

}  // namespace kmeans
