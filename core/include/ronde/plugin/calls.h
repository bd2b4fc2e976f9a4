// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "ronde/collective.h"
#include "ronde/device.h"
#include "ronde/dtype.h"
#include "ronde/kernels.h"

namespace ronde {

/// A piece of one tensor: `count` elements read at `input`, the result written at `output` (which
/// may be the same address). In an allreduce a null input stands for the neutral element of the
/// operation, and a null output means that the result is not wanted here; elsewhere an input may be
/// null where it is not read.
struct Segment {
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
};

/// The ordinal of the device where this rank has joined and brings no buffers: any device of its
/// own serves.
inline constexpr int kNoDevice = -1;

/// The place of the buffers of a call. On a device, none of them is accessed before `after`, and
/// the operation has ended once all its work is queued there (Operation::event).
struct Placement {
  Device device = {};       ///< of all buffers
  DeviceEvents after = {};  ///< none on the CPU
};

/// Reduces every segment with its counterparts of the other ranks. All ranks pass the same counts
/// in the same order; the spans live as long as the operation. An average comes as a Sum whose
/// `final` divides.
struct AllreduceCall {
  std::span<const Segment> segments;
  DataType dtype = DataType::F32;
  ReduceOp op = ReduceOp::Sum;
  double prescale = 1.0;
  Scaling final = {};  ///< of the result
  Placement place = {};
  /// Every segment is reduced in place and lies at the same offset in the symmetric heap of each
  /// rank (Backend::symmetric_heap), with the neutral element where a rank adds nothing. Any rank
  /// that has entered may reduce for all: the others have written their inputs.
  bool symmetric = false;
  /// One of Capabilities::wire_dtypes, which then travels and is reduced in place of `dtype`, f32
  /// or f64 (see Request::wire_dtype). Not in a symmetric call.
  std::optional<DataType> wire_dtype = {};

  /// Returns the type in which elements are reduced and cross between ranks.
  DataType effective_wire_dtype() const noexcept { return wire_dtype.value_or(dtype); }
  /// Returns the work on each element of `dtype`.
  Reduction reduction() const noexcept { return {dtype, op, prescale, final}; }
};

/// Copies the root's inputs to the outputs of all ranks.
struct BroadcastCall {
  std::span<const Segment> segments;
  DataType dtype = DataType::F32;
  int root = 0;
  Placement place = {};
};

/// Concatenates the ranks' inputs in rank order. `counts[r]` elements are those of rank r; `output`
/// holds their sum. In this and the next two calls a null output means that this rank has no memory
/// for its result: it takes part, so that the others get theirs.
struct AllgatherCall {
  const void* input = nullptr;
  void* output = nullptr;
  std::span<const std::size_t> counts;
  DataType dtype = DataType::F32;
  Placement place = {};
};

/// Every rank sends a part of its input to each rank, and receives one from each, in rank order.
/// `send_counts[r]` elements go to rank r, `receive_counts[r]` come from it; the parts lie one
/// behind the other. Input and output do not overlap.
struct AlltoallCall {
  const void* input = nullptr;
  void* output = nullptr;
  std::span<const std::size_t> send_counts;
  std::span<const std::size_t> receive_counts;
  /// The most elements that any rank sends to any rank: equal on all ranks, for decisions that must
  /// be equal, such as the number of chunks.
  std::size_t largest_count = 0;
  DataType dtype = DataType::F32;
  Placement place = {};
};

/// Reduces the ranks' inputs, of which each rank keeps its part: `counts[r]` elements for rank r,
/// one part behind the other. A null input stands for the neutral element of the operation. The
/// output may be this rank's own part of the input, and does not overlap it otherwise.
struct ReducescatterCall {
  const void* input = nullptr;
  void* output = nullptr;
  std::span<const std::size_t> counts;
  DataType dtype = DataType::F32;
  ReduceOp op = ReduceOp::Sum;
  double prescale = 1.0;
  Scaling final = {};  ///< of the result
  Placement place = {};

  /// Returns the work on each element.
  Reduction reduction() const noexcept { return {dtype, op, prescale, final}; }
};

/// A message to `peer`. Only the two ranks take part, which both give the same count, never 0, and
/// the same dtype.
struct SendCall {
  const void* input = nullptr;
  std::size_t count = 0;
  DataType dtype = DataType::F32;
  int peer = 0;
  Placement place = {};
};

/// A message from `peer`.
struct RecvCall {
  void* output = nullptr;
  std::size_t count = 0;
  DataType dtype = DataType::F32;
  int peer = 0;
  Placement place = {};
};

}  // namespace ronde
