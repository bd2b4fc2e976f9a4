// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "backends/gpu/driver/cuda_streams.h"
#include "backends/gpu/driver/memory.h"
#include "backends/gpu/driver/stream.h"
#include "backends/gpu/kernels/kernel_set.h"
#include "core/src/base/steps.h"
#include "ronde/device.h"

namespace ronde::cuda {

/// The resources of a backend on the rank's GPU: a stream, the kernels, pools and the fusion
/// buffer.
///
/// Thread-safety: one thread at a time.
class GpuResources {
 public:
  /// `image`: as in KernelSet. `fusion_bytes`: the fusion buffer's size, a multiple of 16.
  /// `bytes_behind`: more memory behind it, which operations do not use. `keeps_pinned`: unused
  /// page-locked memory is kept, as freeing it might wait for the GPU.
  GpuResources(CudaStreams& streams, int device, const void* image, std::size_t fusion_bytes,
               std::size_t bytes_behind = 0, bool keeps_pinned = true);
  /// Queued work must have ended (CudaStreams::drain); if it never ends, abandon the resources.
  ~GpuResources() = default;

  const std::shared_ptr<const DeviceContext>& context() const noexcept { return context_; }
  KernelSet& kernels() noexcept { return kernels_; }
  Stream& stream() noexcept { return *stream_; }
  EventPool& events() noexcept { return events_; }
  PinnedPool& pinned() noexcept { return pinned_; }

  /// The fusion buffer; the first call makes it. Throws Error if the GPU has too little memory.
  DevicePointer fusion();
  /// The size of the fusion buffer, without the extra bytes allocated behind it.
  std::size_t fusion_bytes() const noexcept { return fusion_bytes_; }

  /// Queues moves on the stream (KernelSet::move).
  void move(std::span<const KernelSet::Move> moves, const KernelSet::How& how) {
    kernels_.move(*stream_, moves, how);
  }
  /// Work queued on the stream from now on runs after these events.
  void run_after(DeviceEvents events);
  /// Ends once all work queued on the stream so far has run.
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
