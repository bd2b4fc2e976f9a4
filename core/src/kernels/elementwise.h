// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "ronde/collective.h"
#include "ronde/dtype.h"
#include "ronde/kernels.h"

namespace ronde {

// Conversion and scaling of elements between a tensor and the fusion buffer.

/// The type in which a packed backend sees `dtype`.
constexpr DataType packed_dtype(DataType dtype, bool widen_halves) noexcept {
  return widen_halves && is_half(dtype) ? DataType::F32 : dtype;
}

/// Writes `count` elements of `dtype` at `input`, scaled, to `output` in packed_dtype(dtype).
/// Integers and bools are never scaled; bools become 0 or 1. A NaN stays some NaN.
void pack_elements(void* output, const void* input, std::size_t count, DataType dtype,
                   Scaling scaling, bool widen_halves);

/// The inverse: from the wire back to `dtype`. Any NaN becomes the one quiet NaN, as which
/// operand's NaN an addition keeps depends on the order of the ranks, and results are equal on all
/// of them.
void unpack_elements(void* output, const void* input, std::size_t count, DataType dtype,
                     Scaling scaling, bool widen_halves);

/// Fills with the neutral element of `op`, in packed_dtype(dtype).
void fill_neutral(void* output, std::size_t count, DataType dtype, ReduceOp op, bool widen_halves);

}  // namespace ronde
