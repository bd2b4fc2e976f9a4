// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/table.h"

namespace kmeans {

// Note [Exact sums]
// A sum of floating-point numbers depends on their order, and so on how the points are divided
// among ranks. Here it must not. So every value is rounded, once, to a whole number of quanta, the
// quantum a power of two: 2^-52 times the largest absolute value (rounded up to a power of two), or
// more if there are over 1024 points, so that the sum of all fits 64 bits. Sums of whole numbers
// are exact in any order, and one integer allreduce gives every rank the same bits. Whole numbers
// within these bounds, such as 8-bit pixels, are not changed by the rounding at all.
//
// Quanta are kept as doubles, which hold whole numbers below 2^53 exactly. Distances and means are
// computed in them as they are: a power of two as unit changes no rounding.
//
// The sum of squared distances is made exact in the same way, with a quantum of its own.

/// Returns the bits of the largest absolute value in quanta: at most 52, and such that the sum of
/// `terms` values stays below 2^62.
int value_bits(std::int64_t terms);

/// Returns the bits after the point, for values of at most `largest` (finite, at least 0) in `bits`
/// bits: the quantum is 2 to the minus this.
int fraction_bits(double largest, int bits);

/// A sum of squared distances between points of `columns` values of `bits` bits, in any
/// order: `terms` of them do not overflow.
class SquareSum {
 public:
  SquareSum(std::int64_t terms, std::int64_t columns, int bits);

  /// Returns what a squared distance adds to the sum: rounded, and never negative.
  std::int64_t term(double square) const;
  /// Returns the sum in squared quanta of the values.
  double value(std::int64_t sum) const;

 private:
  int shift_;
};

/// This rank's part of the points, in quanta: see Note [Exact sums].
struct Points {
  example::Part part;
  std::int64_t rows = 0;  ///< over all ranks
  std::int64_t columns = 0;
  int value_bits = 0;
  int fraction_bits = 0;       ///< a value of 2^fraction_bits quanta is 1
  std::vector<double> values;  ///< [own(), columns], whole numbers

  std::int64_t own() const { return part.count(rows); }
  /// Returns the index, among all points, of the part's `local`th.
  std::int64_t row(std::int64_t local) const { return part.rank + local * part.ranks; }
  std::span<const double> point(std::int64_t local) const {
    return std::span(values).subspan(static_cast<std::size_t>(local * columns),
                                     static_cast<std::size_t>(columns));
  }
};

/// Rounds the table's values to quanta. Collective: the quantum depends on the largest value of all
/// ranks. Throws InputError if the ranks have read different files.
Points make_points(example::Table table, const example::Part& part);

/// Returns the values of point `row`, wherever it is. Collective.
std::vector<double> fetch_point(const Points& points, std::int64_t row);

/// Returns the squared distance in squared quanta, summed in the order of the columns.
double squared_distance(std::span<const double> from, std::span<const double> to);

}  // namespace kmeans
