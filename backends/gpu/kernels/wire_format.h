// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <optional>

#include "ronde/backend.h"
#include "ronde/kernels.h"

namespace ronde::cuda {

/// The type of elements in the fusion buffers, and how they are scaled on their way in and as they
/// are reduced, so that results have the bits of the other backends.
struct WireFormat {
  DataType from = DataType::F32;   ///< in the tensors
  DataType dtype = DataType::F32;  ///< in the fusion buffers
  ReduceOp op = ReduceOp::Sum;
  double pack_scale = 1.0;    ///< factor of elements on their way in
  double reduce_scale = 1.0;  ///< factor of elements as they are reduced
  Scaling final = {};

  std::size_t width() const noexcept { return size_of(dtype); }
  /// The alignment of positions, in elements, for the widest accesses.
  std::size_t alignment() const noexcept { return 16 / width(); }
  /// Whether tensors have the elements of the fusion buffers.
  bool is_plain() const noexcept { return from == dtype && pack_scale == 1.0; }
  Reduction reduction() const noexcept {
    return {.dtype = dtype, .op = op, .prescale = reduce_scale, .final = final};
  }
};

/// Whether scaling keeps the neutral element, which a rank without input sends: it keeps a zero,
/// unless that becomes negative or NaN.
inline bool keeps_neutral(ReduceOp op, double prescale) noexcept {
  if (prescale == 1.0) return true;
  return op == ReduceOp::Sum && !std::signbit(prescale) &&
         std::isfinite(static_cast<float>(prescale));
}

/// Plans a reduction. Neutral elements of ranks without input must not be scaled: so elements are
/// scaled as they are reduced only if scaling keeps the neutral element, and otherwise on the way
/// in, where halves are widened first, as scaling would round them.
inline WireFormat wire_format_of(const Reduction& reduction,
                                 std::optional<DataType> wire_dtype = std::nullopt) {
  WireFormat wire{.from = reduction.dtype,
                  .dtype = wire_dtype.value_or(reduction.dtype),
                  .op = reduction.op,
                  .final = reduction.final};
  if (wire_dtype || !keeps_neutral(reduction.op, reduction.prescale)) {
    wire.pack_scale = reduction.prescale;
    if (!wire_dtype && is_half(reduction.dtype)) wire.dtype = DataType::F32;
  } else {
    wire.reduce_scale = reduction.prescale;
  }
  return wire;
}

/// The same for a reduction in several steps: elements are scaled and rounded to a half type only
/// before the first and after the last step.
inline WireFormat in_steps(WireFormat wire) {
  wire.pack_scale *= wire.reduce_scale;  // one of the two is 1
  wire.reduce_scale = 1.0;
  if (is_half(wire.dtype)) wire.dtype = DataType::F32;
  return wire;
}

}  // namespace ronde::cuda
