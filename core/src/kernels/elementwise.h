// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>

#include "ronde/collective.h"
#include "ronde/dtype.h"
#include "ronde/kernels.h"

namespace ronde {

// Conversion and scaling of elements between a tensor and the fusion buffer.

/// Returns the type in which a packed backend reduces `dtype`.
constexpr DataType packed_dtype(DataType dtype, bool widen_halves) noexcept {
  return widen_halves && is_half(dtype) ? DataType::F32 : dtype;
}

/// Writes `count` elements of `dtype` at `input`, scaled, to `output` in packed_dtype(dtype).
/// Integers and bools are never scaled; bools become 0 or 1. A NaN stays some NaN.
inline void pack_elements(void* output, const void* input, std::size_t count, DataType dtype,
                          Scaling scaling, bool widen_halves) {
  if (count == 0) return;
  if (packed_dtype(dtype, widen_halves) != dtype) {
    best_kernels().widen(output, input, count, {.half = dtype, .scaling = scaling}, Store::Regular);
  } else if (is_integer(dtype) || (scaling.is_identity() && dtype != DataType::Bool)) {
    std::memcpy(output, input, count * size_of(dtype));
  } else {
    best_kernels().reduce(output, {&input, 1}, count, {.dtype = dtype, .final = scaling},
                          Store::Regular);
  }
}

/// Converts reduced elements in packed_dtype(dtype) back to `dtype`, scaled. Any NaN becomes the
/// one quiet NaN: the NaN that an addition keeps depends on the order of its operands, and results
/// are equal on all ranks.
inline void unpack_elements(void* output, const void* input, std::size_t count, DataType dtype,
                            Scaling scaling, bool widen_halves) {
  if (count == 0) return;
  if (packed_dtype(dtype, widen_halves) != dtype) {
    best_kernels().narrow(output, input, count, {.half = dtype, .scaling = scaling},
                          Store::Regular);
  } else if (!is_floating(dtype)) {
    std::memcpy(output, input, count * size_of(dtype));
  } else {
    best_kernels().reduce(output, {&input, 1}, count, {.dtype = dtype, .final = scaling},
                          Store::Regular);
  }
}

/// Fills `output` with the neutral element of `op`, in packed_dtype(dtype).
inline void fill_neutral(void* output, std::size_t count, DataType dtype, ReduceOp op,
                         bool widen_halves) {
  const Reduction reduction{.dtype = packed_dtype(dtype, widen_halves), .op = op};
  best_kernels().reduce(output, {}, count, reduction, Store::Regular);
}

}  // namespace ronde
