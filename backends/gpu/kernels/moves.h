// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "backends/gpu/base/chunk_layout.h"
#include "backends/gpu/kernels/kernel_set.h"
#include "ronde/backend.h"
#include "ronde/kernels.h"

// How elements move between tensors and a fusion buffer.
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

using Moves = std::vector<KernelSet::Move>;

inline std::size_t sum(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

/// Converts and scales elements on their way into the buffer.
inline KernelSet::How way_in(const WireFormat& wire) {
  return {.from = wire.from, .to = wire.dtype, .scaling = {wire.pack_scale, 1.0}, .op = wire.op};
}
/// Converts elements on their way out of the buffer.
inline KernelSet::How way_out(const WireFormat& wire, Traffic traffic = Traffic::Local) {
  return {.from = wire.dtype, .to = wire.from, .traffic = traffic};
}

/// Elements of a chunk.
struct Range {
  std::size_t begin = 0;
  std::size_t end = std::numeric_limits<std::size_t>::max();
};

/// moves_in() moves a chunk's pieces into a buffer, moves_out() moves those in `range` out of it. A
/// piece without input becomes neutral elements; one without output is not moved out.
inline Moves moves_in(std::span<const gpu::Piece> pieces, DevicePointer buffer,
                      const WireFormat& wire) {
  Moves moves;
  for (const gpu::Piece& piece : pieces) {
    const void* const input = piece.segment->input;
    moves.push_back({input != nullptr ? at(input, piece.offset, size_of(wire.from)) : nullptr,
                     writable(buffer + piece.position * wire.width()), piece.count});
  }
  return moves;
}

inline Moves moves_out(std::span<const gpu::Piece> pieces, DevicePointer buffer,
                       const WireFormat& wire, Range range = {}, bool skips_in_place = false) {
  Moves moves;
  for (const gpu::Piece& piece : pieces) {
    void* const output = piece.segment->output;
    const std::size_t begin = std::max(range.begin, piece.position);
    const std::size_t end = std::min(range.end, piece.position + piece.count);
    if (output == nullptr || begin >= end) continue;
    if (skips_in_place && output == piece.segment->input) continue;
    const std::size_t first = piece.offset + begin - piece.position;
    moves.push_back({pointer_to(buffer + begin * wire.width()),
                     at(output, first, size_of(wire.from)), end - begin});
  }
  return moves;
}

/// The parts of all ranks, adjacent in a tensor, that pass through a buffer in chunks: there they
/// are `each` elements apart, and a chunk begins behind the first `done` elements of each part.
struct RankParts {
  std::span<const std::size_t> counts;  ///< elements by rank
  std::size_t done = 0;
  std::size_t each = 0;

  /// The elements of a rank's part in the chunk.
  std::size_t piece(std::size_t rank) const noexcept {
    return counts[rank] > done ? std::min(counts[rank] - done, each) : 0;
  }

  /// Calls `visit(rank, element)` for each non-empty part, with the index of the chunk's first
  /// element in the tensor; begins with the rank `first`, and continues from the last rank with
  /// rank 0.
  template <typename Visit>
  void for_each(Visit visit, std::size_t first = 0) const {
    std::size_t before = sum(counts.first(first));
    for (std::size_t turn = 0; turn < counts.size(); ++turn) {
      const std::size_t rank = (first + turn) % counts.size();
      if (rank == 0) before = 0;
      if (piece(rank) > 0) visit(rank, before + done);
      before += counts[rank];
    }
  }

  /// Moves from a tensor into the buffer. A null input stands for neutral elements.
  Moves moves_in(const void* input, DevicePointer buffer, const WireFormat& wire) const {
    Moves moves;
    for_each([&](std::size_t rank, std::size_t element) {
      moves.push_back({input != nullptr ? at(input, element, size_of(wire.from)) : nullptr,
                       writable(buffer + rank * each * wire.width()), piece(rank)});
    });
    return moves;
  }
};

}  // namespace ronde::cuda
