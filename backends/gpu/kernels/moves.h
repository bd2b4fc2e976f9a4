// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "backends/gpu/base/chunk_layout.h"
#include "backends/gpu/kernels/kernel_set.h"
#include "backends/gpu/kernels/wire_format.h"

// Moves of elements between tensors and a buffer.
namespace ronde::cuda {

using Moves = std::vector<KernelSet::Move>;

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
  std::size_t count() const noexcept { return end - begin; }
};

/// moves_in() moves a chunk's pieces into a buffer, moves_out() moves those in `range` out of it.
/// Elements have `tensor_width` bytes in tensors, and `width` in the buffer. A piece without input
/// becomes neutral elements; one without output is not moved out.
inline Moves moves_in(std::span<const gpu::Piece> pieces, DevicePointer buffer,
                      std::size_t tensor_width, std::size_t width) {
  Moves moves;
  for (const gpu::Piece& piece : pieces) {
    const void* const input = piece.segment->input;
    moves.push_back({input != nullptr ? at(input, piece.offset, tensor_width) : nullptr,
                     writable(buffer + piece.position * width), piece.count});
  }
  return moves;
}

inline Moves moves_out(std::span<const gpu::Piece> pieces, DevicePointer buffer,
                       std::size_t tensor_width, std::size_t width, Range range = {},
                       bool skips_in_place = false) {
  Moves moves;
  for (const gpu::Piece& piece : pieces) {
    void* const output = piece.segment->output;
    const std::size_t begin = std::max(range.begin, piece.position);
    const std::size_t end = std::min(range.end, piece.position + piece.count);
    if (output == nullptr || begin >= end) continue;
    if (skips_in_place && output == piece.segment->input) continue;
    moves.push_back({pointer_to(buffer + begin * width),
                     at(output, piece.offset + begin - piece.position, tensor_width), end - begin});
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
    std::size_t before = std::accumulate(
        counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(first), std::size_t{0});
    for (std::size_t turn = 0; turn < counts.size(); ++turn) {
      const std::size_t rank = (first + turn) % counts.size();
      if (rank == 0) before = 0;
      if (piece(rank) > 0) visit(rank, before + done);
      before += counts[rank];
    }
  }

  /// Moves from a tensor, of elements of `tensor_width` bytes, into the buffer, of `width`. A null
  /// input stands for neutral elements.
  Moves moves_in(const void* input, std::size_t tensor_width, DevicePointer buffer,
                 std::size_t width) const {
    Moves moves;
    for_each([&](std::size_t rank, std::size_t element) {
      moves.push_back({input != nullptr ? at(input, element, tensor_width) : nullptr,
                       writable(buffer + rank * each * width), piece(rank)});
    });
    return moves;
  }

  /// Moves each rank's part from `source_of(rank)` to its place in the output; `first` comes first.
  template <typename SourceOf>
  Moves moves_out(SourceOf source_of, void* output, std::size_t width,
                  std::size_t first = 0) const {
    Moves moves;
    const auto add = [&](std::size_t rank, std::size_t element) {
      moves.push_back({pointer_to(source_of(rank)), at(output, element, width), piece(rank)});
    };
    if (output != nullptr) for_each(add, first);
    return moves;
  }
};

}  // namespace ronde::cuda
