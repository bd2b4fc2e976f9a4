// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <array>

#include "ronde/collective.h"
#include "ronde/dtype.h"

// Note [Own operators]
// MPI_MIN and MPI_MAX leave NaN and signed zeros to the order of operands, which is not the same on
// every rank, and MPICH 4.0.2 compares unsigned bytes as signed ones. MPI_SUM of Open MPI 4.1.4
// saturates integers of 8 and 16 bits where the processor has AVX, in place of wrapping around. For
// these types Ronde brings its own operators, which are its kernels.

namespace ronde::mpi {

/// An operator that MPI lacks, and the function behind it.
struct OwnOperator {
  DataType dtype;
  ReduceOp op;
  MPI_User_function* function;
};

inline constexpr std::size_t kOwnOperatorCount = 9;
const std::array<OwnOperator, kOwnOperatorCount>& own_operators();

}  // namespace ronde::mpi
