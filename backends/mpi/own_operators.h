// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <type_traits>

#include "ronde/collective.h"
#include "ronde/dtype.h"

// Note [Own operators]
// MPI_MIN and MPI_MAX leave NaN and signed zeros to the order of operands, which is not the same on
// every rank, and MPICH 4.0.2 compares unsigned bytes as signed ones. MPI_SUM of Open MPI 4.1.4
// saturates integers of 8 and 16 bits where the processor has AVX, in place of wrapping around. For
// these types Ronde brings its own operators.

namespace ronde::mpi {

/// The smaller operand; NaN if one is NaN (always the same NaN), and -0 is below +0: the result
/// does not depend on the order of operands.
template <typename T>
T propagating_min(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    if (a == b) return std::signbit(a) ? a : b;
  }
  return std::min(a, b);
}

/// The larger operand, with the same rules.
template <typename T>
T propagating_max(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    if (a == b) return std::signbit(a) ? b : a;
  }
  return std::max(a, b);
}

/// The sum modulo 2^bits, as Ronde's own kernels have it.
template <typename T>
T wrapping_sum(T a, T b) {
  static_assert(sizeof(T) < sizeof(int), "the sum of two ints could overflow");
  return static_cast<T>(a + b);
}

/// An operator that MPI lacks, and the function behind it.
struct OwnOperator {
  DataType dtype;
  ReduceOp op;
  MPI_User_function* function;
};

inline constexpr std::size_t kOwnOperatorCount = 9;
const std::array<OwnOperator, kOwnOperatorCount>& own_operators();

}  // namespace ronde::mpi
