// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

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
void pack_elements(void* output, const void* input, std::size_t count, DataType dtype,
                   Scaling scaling, bool widen_halves);

/// Converts reduced elements in packed_dtype(dtype) back to `dtype`, scaled. Any NaN becomes the
/// one quiet NaN: the NaN that an addition keeps depends on the order of its operands, and results
/// are equal on all ranks.
void unpack_elements(void* output, const void* input, std::size_t count, DataType dtype,
                     Scaling scaling, bool widen_halves);

/// Fills `output` with the neutral element of `op`, in packed_dtype(dtype).
void fill_neutral(void* output, std::size_t count, DataType dtype, ReduceOp op, bool widen_halves);

}  // namespace ronde
