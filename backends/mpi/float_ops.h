// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <cmath>
#include <limits>

namespace ronde::mpi {

/// The smaller operand; NaN if one is NaN (always the same NaN), and -0 is below +0. So the result
/// does not depend on the order of operands, which MPI leaves open, and is the same on every rank.
template <typename Float>
Float propagating_min(Float a, Float b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<Float>::quiet_NaN();
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}

/// The larger operand, with the same rules.
template <typename Float>
Float propagating_max(Float a, Float b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<Float>::quiet_NaN();
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}

/// The functions behind our MPI operators: MPI_MIN and MPI_MAX leave NaN to the order of operands.
MPI_User_function* min_function(bool is_double);
MPI_User_function* max_function(bool is_double);

}  // namespace ronde::mpi
