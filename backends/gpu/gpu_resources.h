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

/// The resources of a backend on the rank's GPU: a stream, the kernels and the fusion buffer.
///
/// Thread-safety: one thread at a time.
class GpuResources {
 public:
  /// `image`: as in KernelSet. `fusion_bytes`: the fusion buffer's size, a multiple of 16. In the
  /// end, queued work must have ended (CudaStreams::drain); if it never ends, abandon the
  /// resources.
  GpuResources(CudaStreams& streams, int device, const void* image, std::size_t fusion_bytes);

  const std::shared_ptr<const DeviceContext>& context() const noexcept { return context_; }
  KernelSet& kernels() noexcept { return kernels_; }
  Stream& stream() noexcept { return *stream_; }

  /// The fusion buffer; the first call makes it. Throws Error if the GPU has too little memory.
  DevicePointer fusion();
  std::size_t fusion_bytes() const noexcept { return fusion_bytes_; }

  /// Queues moves on the stream (KernelSet::move).
  void move(std::span<const KernelSet::Move> moves, const KernelSet::How& how) {
    kernels_.move(*stream_, moves, how);
  }
  /// Work queued on the stream from now on runs after these events.
  void run_after(DeviceEvents events) {
    for (const auto& event : events) event->order(stream_->handle());
  }
  /// Ends once all work queued on the stream so far has run.
  Steps reach();

 private:
  const std::shared_ptr<const DeviceContext> context_;
  const std::size_t fusion_bytes_;
  KernelSet kernels_;
  DeviceMemory fusion_;
  std::shared_ptr<Stream> stream_;
};

}  // namespace ronde::cuda
