// SPDX-License-Identifier: Apache-2.0
#include "core/src/kernels/elementwise.h"

#include <cstring>

namespace ronde {
namespace {

void scale_elements(void* output, const void* input, std::size_t count, DataType dtype,
                    Scaling scaling) {
  const Reduction reduction{.dtype = dtype, .final = scaling};
  best_kernels().reduce(output, {&input, 1}, count, reduction, Store::Regular);
}

}  // namespace

void pack_elements(void* output, const void* input, std::size_t count, DataType dtype,
                   Scaling scaling, bool widen_halves) {
  if (count == 0) return;
  if (packed_dtype(dtype, widen_halves) != dtype) {
    best_kernels().widen(output, input, count, {.half = dtype, .scaling = scaling}, Store::Regular);
  } else if (is_integer(dtype) || (scaling.is_identity() && dtype != DataType::Bool)) {
    std::memcpy(output, input, count * size_of(dtype));
  } else {
    scale_elements(output, input, count, dtype, scaling);
  }
}

void unpack_elements(void* output, const void* input, std::size_t count, DataType dtype,
                     Scaling scaling, bool widen_halves) {
  if (count == 0) return;
  if (packed_dtype(dtype, widen_halves) != dtype) {
    best_kernels().narrow(output, input, count, {.half = dtype, .scaling = scaling},
                          Store::Regular);
  } else if (!is_floating(dtype)) {
    std::memcpy(output, input, count * size_of(dtype));
  } else {
    scale_elements(output, input, count, dtype, scaling);
  }
}

void fill_neutral(void* output, std::size_t count, DataType dtype, ReduceOp op, bool widen_halves) {
  const Reduction reduction{.dtype = packed_dtype(dtype, widen_halves), .op = op};
  best_kernels().reduce(output, {}, count, reduction, Store::Regular);
}

}  // namespace ronde
