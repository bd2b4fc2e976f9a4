// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "backends/cuda/cuda_streams.h"
#include "backends/cuda/kernel_set.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/stream.h"
#include "core/src/base/steps.h"
#include "ronde/device.h"

namespace ronde::cuda {

/// What a backend works with on the rank's GPU: a stream of its own, the kernels, pools, and the
/// fusion buffer, which is made once and stays.
///
/// Thread-safety: one thread at a time.
class Workbench {
 public:
  /// `image`: as in KernelSet. `fusion_bytes`: of the fusion buffer, a multiple of 16.
  /// `bytes_behind`: of memory behind it that operations leave alone. `keeps_pinned`: page-locked
  /// memory that nobody uses at the moment is kept, as freeing it might wait for the GPU.
  Workbench(CudaStreams& streams, int device, const void* image, std::size_t fusion_bytes,
            std::size_t bytes_behind = 0, bool keeps_pinned = true);
  /// Queued work has to be over (CudaStreams::settle); where it never is, it is to be abandoned.
  ~Workbench();
  Workbench(const Workbench&) = delete;
  Workbench& operator=(const Workbench&) = delete;

  const std::shared_ptr<const DeviceContext>& context() const noexcept { return context_; }
  KernelSet& kernels() noexcept { return kernels_; }
  Stream& stream() noexcept { return *stream_; }
  EventPool& events() noexcept { return events_; }
  PinnedPool& pinned() noexcept { return pinned_; }

  /// The fusion buffer; made by the first call. Throws Error where the GPU has too little memory.
  DevicePointer fusion();
  /// What operations use of it.
  std::size_t fusion_bytes() const noexcept { return fusion_bytes_; }

  /// Queues moves on the stream (KernelSet::move).
  void move(std::span<const KernelSet::Move> moves, const KernelSet::How& how) {
    kernels_.move(*stream_, moves, how);
  }
  /// What is queued on the stream from now on runs after all of these.
  void run_after(DeviceEvents events);
  /// Ends once all that is queued on the stream has run.
  Steps reach();

 private:
  const std::shared_ptr<const DeviceContext> context_;
  const std::size_t fusion_bytes_;
  const std::size_t bytes_behind_;
  KernelSet kernels_;
  EventPool events_;
  PinnedPool pinned_;
  DeviceMemory fusion_;
  std::shared_ptr<Stream> stream_;
};

}  // namespace ronde::cuda
