// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "backends/cuda/kernel_set.h"
#include "backends/cuda/stream.h"

namespace ronde::cuda {

/// Packs and unpacks: copies segments with conversion and scale on the way, kernels::kMostSegments
/// by each launch.
///
/// Thread-safety: one thread at a time.
class SegmentMover {
 public:
  /// Both outlive it; `stream` is the only one that it queues work on.
  SegmentMover(KernelSet& kernels, Stream& stream) : kernels_(kernels), stream_(stream) {}

  struct Move {
    /// Null: the neutral element of `op` is written.
    const void* source = nullptr;
    void* target = nullptr;
    std::size_t count = 0;
  };
  using How = KernelSet::Copy;

  /// Queues it. The memory is the GPU's own, or mapped.
  void move(std::span<const Move> moves, const How& how);

 private:
  KernelSet& kernels_;
  Stream& stream_;
};

}  // namespace ronde::cuda
