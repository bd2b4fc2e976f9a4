// SPDX-License-Identifier: Apache-2.0
#include "fixed_point.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kmeans {
namespace {

constexpr int kSumBits = 62;
constexpr int kDoubleBits = 52;

/// The least b with value <= 2^b.
int ceil_log2(std::int64_t value) {
  return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(value) - 1));
}

}  // namespace

int value_bits(std::int64_t terms) {
  return std::min(kDoubleBits, kSumBits - ceil_log2(terms));
}

int fraction_bits(double largest, int bits) {
  if (largest == 0) return 0;
  // largest < 2^(ilogb + 1), and rounds to 2^bits quanta at most.
  return bits - (std::ilogb(largest) + 1);
}

SquareSum::SquareSum(std::int64_t terms, std::int64_t columns, int bits)
    // A difference has one bit more than a value.
    : shift_(2 * (bits + 1) + ceil_log2(columns) + ceil_log2(terms) - kSumBits) {}

std::int64_t SquareSum::term(double square) const {
  return std::llrint(std::ldexp(square, -shift_));
}

double SquareSum::value(std::int64_t sum) const {
  return std::ldexp(static_cast<double>(sum), shift_);
}

}  // namespace kmeans
