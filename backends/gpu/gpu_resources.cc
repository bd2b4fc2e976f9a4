// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/gpu_resources.h"

#include <string>

namespace ronde::cuda {

GpuResources::GpuResources(CudaStreams& streams, int device, const void* image,
                           std::size_t fusion_bytes)
    : context_(streams.context(device)),
      fusion_bytes_(fusion_bytes),
      kernels_(context_, image),
      stream_(streams.make_stream(device)) {}

DevicePointer GpuResources::fusion() {
  if (fusion_.bytes() > 0) return fusion_.address();
  try {
    // Peers map whole blocks, which must contain nothing else of this process.
    fusion_ = DeviceMemory(context_, (fusion_bytes_ + kBlockBytes - 1) / kBlockBytes * kBlockBytes);
  } catch (const DriverError& error) {
    if (error.result() != kOutOfMemory) throw;
    throw Error(std::string(error.what()) +
                ". The fusion buffer needs them: choose a smaller RONDE_FUSION_BYTES");
  }
  return fusion_.address();
}

Steps GpuResources::reach() {
  const Event over(context_);
  stream_->record(over);
  co_await until([&over] { return over.is_done(); });
}

}  // namespace ronde::cuda
