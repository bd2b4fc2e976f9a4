// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "ronde/collective.h"
#include "ronde/dtype.h"

namespace ronde {

/// `value * factor / divisor`. Two numbers, because the sum of 49 ones times 1/49 is less than one.
struct Scaling {
  double factor = 1.0;
  double divisor = 1.0;

  /// Returns whether it changes no value.
  bool is_identity() const noexcept { return factor == 1.0 && divisor == 1.0; }
};

/// Returns the op that combines elements: an average is a sum, which final_scaling() divides.
constexpr ReduceOp combining_op(ReduceOp op) noexcept {
  return op == ReduceOp::Average ? ReduceOp::Sum : op;
}

/// Returns the scaling that remains for an element that was reduced over `ranks` ranks.
inline Scaling final_scaling(DataType dtype, ReduceOp op, double postscale, int ranks) noexcept {
  Scaling scaling{postscale, 1.0};
  if (op != ReduceOp::Average) return scaling;
  // A division by a power of two is an exact multiplication, and several times faster.
  if (is_floating(dtype) && std::has_single_bit(static_cast<unsigned>(ranks))) {
    scaling.factor /= ranks;
  } else {
    scaling.divisor = ranks;
  }
  return scaling;
}

/// Kinds of stores: Streaming bypasses the caches, which pays where this core does not read the
/// lines soon, and where another core read them last.
enum class Store : std::uint8_t { Regular, Streaming };

/// The work of Kernels::reduce on each element. Every input is scaled by `prescale`, then combined
/// with the others in rank order, then scaled by `final`. Half types are computed in f32 and
/// rounded once, at the end; integers and bools are never scaled (Ronde gives no backend a call
/// that would: Note [Exact sums] in core/src/run/exact_sum.h), and bools become 0 or 1. Any NaN
/// of the result is the one quiet NaN. ReduceOp::Average is Sum here: the caller puts the division
/// into `final`.
struct Reduction {
  DataType dtype = DataType::F32;
  ReduceOp op = ReduceOp::Sum;
  double prescale = 1.0;
  Scaling final = {};
};

/// The work of Kernels::widen and Kernels::narrow on each element: conversion from one type to the
/// other, scaled in the precision of `full`.
struct Conversion {
  DataType half = DataType::F16;  ///< or BF16
  DataType full = DataType::F32;  ///< or F64
  Scaling scaling = {};
};

/// Dot products of two vectors.
struct Products {
  double mixed = 0.0;   ///< of the first with the second
  double first = 0.0;   ///< of the first with itself
  double second = 0.0;  ///< of the second with itself
};

/// Coefficients of a linear combination of two vectors.
struct Blend {
  double first = 1.0;
  double second = 1.0;
};

/// The loops over elements, compiled for one instruction set. All sets give the same bits.
///
/// Thread-safety: the functions are pure.
struct Kernels {
  /// "avx512", "avx2", "neon" or "baseline".
  std::string_view name;

  /// `output[i]` = inputs[0][i] op inputs[1][i] op ..., `count` elements each. A null input stands
  /// for the neutral element of `op`, unscaled. `output` may equal any input.
  void (*reduce)(void* output, std::span<const void* const> inputs, std::size_t count,
                 const Reduction& reduction, Store store);

  /// Copies as memcpy with this kind of store. No overlap.
  void (*copy)(void* output, const void* input, std::size_t bytes, Store store);

  /// `output[i]` = `input[i]` scaled, `count` elements: from the half type to the full one, and
  /// back with one rounding, to nearest even. Any NaN of the result is the one quiet NaN. No
  /// overlap.
  /// @{
  void (*widen)(void* output, const void* input, std::size_t count, const Conversion& conversion,
                Store store);
  void (*narrow)(void* output, const void* input, std::size_t count, const Conversion& conversion,
                 Store store);
  /// @}

  /// Returns products of `count` elements of F32 or F64, in f64, in one order for all instruction
  /// sets.
  Products (*products)(const void* first, const void* second, std::size_t count, DataType dtype);

  /// `output[i]` = first[i] * factors.first + second[i] * factors.second, of F32 or F64, computed
  /// in f64 and rounded once. `output` may equal either input.
  void (*blend)(void* output, const void* first, const void* second, std::size_t count,
                DataType dtype, const Blend& factors);
};

/// Returns the fastest set that this processor can run.
const Kernels& best_kernels();

/// Returns all sets that this processor can run, the fastest first; the last is "baseline".
std::span<const Kernels* const> available_kernels();

}  // namespace ronde
