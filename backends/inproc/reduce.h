// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "ronde/collective.h"
#include "ronde/dtype.h"

namespace ronde::inproc {

/// accumulator[i] = accumulator[i] op input[i]. Integer sums and products wrap; min and max
/// propagate NaN and order the zeros, so that the result does not depend on the order of operands.
/// Not for half types (packed backends get them widened) nor for Average.
void reduce_into(void* accumulator, const void* input, std::size_t count, DataType dtype,
                 ReduceOp op);

}  // namespace ronde::inproc
