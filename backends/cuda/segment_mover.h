// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "backends/cuda/kernel_set.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/stream.h"

namespace ronde::cuda {

/// Packs and unpacks: copies hundreds of segments by one kernel, with conversion and scale on the
/// way.
///
/// Thread-safety: one thread at a time. Its work has to be over before it is destroyed.
class SegmentMover {
 public:
  /// All outlive it; `stream` is the only one that it queues work on.
  SegmentMover(KernelSet& kernels, Stream& stream, EventPool& events, PinnedPool& pinned);

  struct Move {
    /// Null: the neutral element of `op` is written.
    const void* source = nullptr;
    void* target = nullptr;
    std::size_t count = 0;
  };
  struct How {
    DataType from = DataType::F32;
    DataType to = DataType::F32;  ///< KernelSet::can_copy
    Scaling scaling = {};
    ReduceOp op = ReduceOp::Sum;
    /// Any NaN becomes the one quiet NaN, where it would be copied as it is otherwise.
    bool canonical = false;
    Traffic traffic = Traffic::Local;
  };
  /// Makes what moves of up to so many segments need, also with several of them queued: making it
  /// later might wait for what is queued. Throws DriverError.
  void reserve(std::size_t segments);

  /// Queues it. The memory is the GPU's own, or mapped.
  void move(std::span<const Move> moves, const How& how);

 private:
  struct Table {
    PinnedBlock staging;
    Event copied;
  };
  /// The table as the kernel sees it.
  DevicePointer upload(const std::vector<kernels::SegmentCopy>& copies);
  void grow_table(std::size_t bytes);

  KernelSet& kernels_;
  Stream& stream_;
  EventPool& events_;
  PinnedPool& pinned_;
  DeviceMemory table_;  ///< in the stream's order
  /// Too small since, but kernels that are queued may read them, and freeing one would wait for the
  /// device. Each is twice the one before.
  std::vector<DeviceMemory> outgrown_;
  std::deque<Table> in_flight_;  ///< the oldest first
  std::vector<kernels::SegmentCopy> copies_;
};

}  // namespace ronde::cuda
