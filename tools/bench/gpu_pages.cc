// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu_pages.h"

#include "backends/cuda/addresses.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/stream.h"
#include "ronde/error.h"

namespace ronde::tool {
namespace {

class GpuPages final : public Pages {
 public:
  GpuPages(const std::shared_ptr<const cuda::DriverApi>& api, int device, std::size_t bytes)
      : context_(std::make_shared<cuda::DeviceContext>(api, device)),
        memory_(context_, bytes),
        stream_(context_) {}

  std::byte* data() const override {
    return static_cast<std::byte*>(cuda::writable(memory_.address()));
  }
  Device device() const override { return {DeviceKind::Cuda, context_->index()}; }
  void* stream() const override { return stream_.handle(); }

  void zero(std::byte* at, std::size_t bytes) override {
    stream_.fill(cuda::address_of(at), 0, bytes, "clearing a buffer");
    wait();
  }
  void write(std::byte* at, const std::byte* from, std::size_t bytes) override {
    copy(cuda::address_of(at), cuda::address_of(from), bytes);
  }
  void read(std::byte* to, const std::byte* at, std::size_t bytes) const override {
    copy(cuda::address_of(to), cuda::address_of(at), bytes);
  }

 private:
  void copy(cuda::DevicePointer to, cuda::DevicePointer from, std::size_t bytes) const {
    if (bytes == 0) return;
    stream_.copy(to, from, bytes, "copying a buffer");
    wait();
  }
  void wait() const {
    context_->call("waiting for the GPU", &cuda::DriverApi::stream_synchronize, stream_.handle());
  }

  const std::shared_ptr<const cuda::DeviceContext> context_;
  const cuda::DeviceMemory memory_;
  mutable cuda::Stream stream_;  ///< that it is used changes nothing here
};

}  // namespace

std::shared_ptr<const cuda::DriverApi> driver_of(const GpuAccess& access) {
  const cuda::LoadedDriver driver = cuda::load_driver(access.symbols);
  if (!driver.api) throw UsageError("there is no GPU to measure: " + driver.problem);
  return driver.api;
}

int device_of(const cuda::DriverApi& api, const Topology& topology) {
  int count = 0;
  cuda::check(api, "counting GPUs", api.device_count, &count);
  if (count == 0) throw UsageError("no GPU is visible here (CUDA_VISIBLE_DEVICES)");
  return topology.local_rank % count;
}

std::unique_ptr<Pages> make_gpu_pages(const GpuAccess& access, const Topology& topology,
                                      std::size_t bytes) {
  const std::shared_ptr<const cuda::DriverApi> api = driver_of(access);
  return std::make_unique<GpuPages>(api, device_of(*api, topology), bytes);
}

}  // namespace ronde::tool
