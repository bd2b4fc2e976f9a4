// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kmeans {

// Note [Exact sums]
//
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

/// Bits of the largest absolute value in quanta: at most 52, and such that the sum of `terms`
/// values stays below 2^62.
int value_bits(std::int64_t terms);

/// Bits after the point, for values of at most `largest` (finite, at least 0) in `bits` bits: the
/// quantum is 2 to the minus this.
int fraction_bits(double largest, int bits);

/// A sum of squared distances between points of `columns` values of `bits` bits, in any
/// order: `terms` of them do not overflow.
class SquareSum {
 public:
  SquareSum(std::int64_t terms, std::int64_t columns, int bits);

  /// What a squared distance adds to the sum: rounded, and never negative.
  std::int64_t term(double square) const;
  /// The sum in squared quanta of the values.
  double value(std::int64_t sum) const;

 private:
  int shift_;
};

}  // namespace kmeans
