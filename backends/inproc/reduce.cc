// SPDX-License-Identifier: Apache-2.0
#include "backends/inproc/reduce.h"

#include <array>

#include "ronde/error.h"
#include "ronde/kernels.h"

namespace ronde::inproc {

void reduce_into(void* accumulator, const void* input, std::size_t count, DataType dtype,
                 ReduceOp op) {
  if (op == ReduceOp::Average) {
    throw Error("an inproc backend was asked for an average, which is scaled outside of it");
  }
  if (is_half(dtype)) {
    throw Error("an inproc backend was given a half type, which is widened outside of it");
  }
  const std::array<const void*, 2> inputs = {accumulator, input};
  const Reduction reduction{.dtype = dtype, .op = op};
  best_kernels().reduce(accumulator, inputs, count, reduction, Store::Regular);
}

}  // namespace ronde::inproc
