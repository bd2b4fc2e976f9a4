// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <optional>

#include "ronde/backend.h"
#include "ronde/kernels.h"

namespace ronde::cuda {

/// As what elements lie in the fusion buffers, and what is done to them on the way in, between the
/// ranks, and nowhere else: so that the result has the bits of the other backends.
struct Travel {
  DataType from = DataType::F32;   ///< in the tensors
  DataType dtype = DataType::F32;  ///< in the fusion buffers
  ReduceOp op = ReduceOp::Sum;     ///< never Average, which is in `final`
  double pack_scale = 1.0;         ///< by what elements are scaled on their way in
  double reduce_scale = 1.0;       ///< by what they are scaled as they are combined
  Scaling final = {};

  std::size_t width() const noexcept { return size_of(dtype); }
  /// Of positions, in elements, so that all is read and written in the widest steps.
  std::size_t alignment() const noexcept { return 16 / width(); }
  /// Elements lie in the tensors as they travel.
  bool is_plain() const noexcept { return from == dtype && pack_scale == 1.0; }
  Reduction reduction() const noexcept {
    return {.dtype = dtype, .op = op, .prescale = reduce_scale, .final = final};
  }
};

/// Whether the neutral element, which a rank that adds nothing sends, survives the scale: a zero
/// does, unless it becomes a negative one or no number.
inline bool keeps_neutral(ReduceOp op, double prescale) noexcept {
  if (prescale == 1.0) return true;
  const bool is_sum = op == ReduceOp::Sum || op == ReduceOp::Average;
  return is_sum && !std::signbit(prescale) && std::isfinite(static_cast<float>(prescale));
}

/// Of a reduction with these values. A rank that adds nothing to a tensor brings neutral elements,
/// and those must not be scaled: so they are scaled as they are combined only where that does
/// nothing to a zero, and on the way in elsewhere, where halves are widened for it, as scaling them
/// would round them.
inline Travel travel_of(DataType dtype, ReduceOp op, double prescale, double postscale, int divisor,
                        std::optional<DataType> wire_dtype) {
  Travel travel{.from = dtype, .dtype = wire_dtype.value_or(dtype)};
  travel.op = op == ReduceOp::Average ? ReduceOp::Sum : op;
  if (wire_dtype || !keeps_neutral(op, prescale)) {
    travel.pack_scale = prescale;
    if (!wire_dtype && is_half(dtype)) travel.dtype = DataType::F32;
  } else {
    travel.reduce_scale = prescale;
  }
  travel.final = final_scaling(travel.dtype, op, postscale, divisor);
  return travel;
}

/// The same for elements that are combined in several steps, between which nothing may be scaled,
/// or rounded to a half type: it is done once, before and after all of them.
inline Travel in_steps(Travel travel) {
  travel.pack_scale *= travel.reduce_scale;  // one of the two is 1
  travel.reduce_scale = 1.0;
  if (is_half(travel.dtype)) travel.dtype = DataType::F32;
  return travel;
}

}  // namespace ronde::cuda
