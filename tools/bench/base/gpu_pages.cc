// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/base/gpu_pages.h"

#include "backends/gpu/driver/driver_api.h"
#include "backends/gpu/driver/memory.h"
#include "backends/gpu/driver/stream.h"
#include "ronde/error.h"

namespace ronde::tool {
namespace {

class GpuPages final : public Pages {
 public:
  GpuPages(std::shared_ptr<const cuda::DriverApi> api, int device, bool is_shared,
           std::size_t bytes)
      : context_(std::make_shared<cuda::DeviceContext>(std::move(api), device)),
        is_shared_(is_shared),
        memory_(context_, bytes),
        stream_(context_) {}

  std::byte* data() const override {
    return static_cast<std::byte*>(cuda::writable(memory_.address()));
  }
  Device device() const override { return {DeviceKind::Cuda, context_->index()}; }
  std::string device_name() const override { return context_->gpu().name; }
  bool is_shared() const override { return is_shared_; }
  void* stream() const override { return stream_.handle(); }

  void zero(std::byte* at, std::size_t bytes) override {
    stream_.fill(cuda::address_of(at), 0, bytes, "clearing a buffer");
    wait();
  }
  void copy(void* to, const void* from, std::size_t bytes) const override {
    if (bytes == 0) return;
    stream_.copy(cuda::address_of(to), cuda::address_of(from), bytes, "copying a buffer");
    wait();
  }

 private:
  void wait() const {
    context_->call("waiting for the GPU", &cuda::DriverApi::stream_synchronize, stream_.handle());
  }

  const std::shared_ptr<const cuda::DeviceContext> context_;
  const bool is_shared_;
  const cuda::DeviceMemory memory_;
  mutable cuda::Stream stream_;  ///< that it is used changes nothing here
};

}  // namespace

std::unique_ptr<Pages> make_gpu_pages(const GpuAccess& access, const Topology& topology,
                                      std::size_t bytes) {
  cuda::LoadedDriver driver = cuda::load_driver(access.symbols);
  if (!driver.api) throw UsageError("there is no GPU to measure: " + driver.problem);
  int count = 0;
  cuda::check(*driver.api, "counting GPUs", driver.api->device_count, &count);
  if (count == 0) throw UsageError("no GPU is visible here (CUDA_VISIBLE_DEVICES)");
  return std::make_unique<GpuPages>(std::move(driver.api), topology.local_rank % count,
                                    topology.local_size > count, bytes);
}

}  // namespace ronde::tool
