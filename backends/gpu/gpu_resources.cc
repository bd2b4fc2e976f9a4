// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/gpu_resources.h"

#include <string>

namespace ronde::cuda {
namespace {

constexpr std::size_t kKeepPinned = std::size_t{64} << 20;  ///< bytes of unused page-locked memory

}  // namespace

GpuResources::GpuResources(CudaStreams& streams, int device, const void* image,
                           std::size_t fusion_bytes, std::size_t bytes_behind, bool keeps_pinned)
    : context_(streams.context(device)),
      fusion_bytes_(fusion_bytes),
      bytes_behind_(bytes_behind),
      kernels_(context_, image),
      events_(context_),
      pinned_(context_, keeps_pinned ? kKeepPinned : 0),
      stream_(streams.make_stream(device)) {}

DevicePointer GpuResources::fusion() {
  if (fusion_.bytes() > 0) return fusion_.address();
  try {
    // Peers map whole blocks, which must contain nothing else of this process.
    const std::size_t bytes = fusion_bytes_ + bytes_behind_;
    fusion_ = DeviceMemory(context_, (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes);
  } catch (const DriverError& error) {
    if (error.result() != kOutOfMemory) throw;
    throw Error(std::string(error.what()) +
                ". The fusion buffer needs them: choose a smaller RONDE_FUSION_BYTES");
  }
  return fusion_.address();
}

void GpuResources::run_after(DeviceEvents events) {
  for (const std::shared_ptr<const DeviceEvent>& event : events) event->order(stream_->handle());
}

Steps GpuResources::reach() {
  const Event over = events_.take();
  stream_->record(over);
  co_await until([&over] { return over.is_done(); });
}

}  // namespace ronde::cuda
