// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backends/cuda/segment_mover.h"
#include "backends/device/chunk_layout.h"
#include "backends/nccl/lane_operation.h"

namespace ronde::nccl {

/// The ways of a chunk's pieces into a buffer, and out of it: elements have `tensor_width` bytes in
/// the tensors, and `width` there. Where there is no input neutral elements come from nowhere, and
/// where there is no output nothing is taken out.
/// @{
inline std::vector<cuda::SegmentMover::Move> moves_in(std::span<const device::Piece> pieces,
                                                      std::byte* buffer, std::size_t tensor_width,
                                                      std::size_t width) {
  std::vector<cuda::SegmentMover::Move> moves;
  for (const device::Piece& piece : pieces) {
    const void* const input = piece.segment->input;
    moves.push_back({input != nullptr ? advanced(input, piece.offset * tensor_width) : nullptr,
                     buffer + piece.position * width, piece.count});
  }
  return moves;
}

inline std::vector<cuda::SegmentMover::Move> moves_out(std::span<const device::Piece> pieces,
                                                       const std::byte* buffer,
                                                       std::size_t tensor_width,
                                                       std::size_t width) {
  std::vector<cuda::SegmentMover::Move> moves;
  for (const device::Piece& piece : pieces) {
    void* const output = piece.segment->output;
    if (output == nullptr) continue;
    moves.push_back({buffer + piece.position * width, advanced(output, piece.offset * tensor_width),
                     piece.count});
  }
  return moves;
}
/// @}

}  // namespace ronde::nccl
