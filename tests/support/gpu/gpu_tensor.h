// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backends/gpu/driver/device_context.h"
#include "backends/gpu/driver/memory.h"
#include "backends/gpu/driver/stream.h"
#include "ronde/request.h"
#include "tests/support/ranks/requests.h"

namespace ronde::test {

using Bytes = std::vector<std::byte>;

/// The bits of numbers.
/// @{
template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}
inline Bytes bytes_of(const TensorValues& values) {
  const auto* const begin = static_cast<const std::byte*>(values.data());
  return {begin, begin + values.bytes()};
}
/// @}

/// A GPU as a program sees it, with a stream of its own: a fake one or a real one.
struct ProgramGpu {
  ProgramGpu(const std::shared_ptr<const cuda::DriverApi>& api, int index)
      : context(std::make_shared<cuda::DeviceContext>(api, index)), stream(context) {}

  /// A request for memory there, in order with the stream.
  void place(Request& request) const {
    request.device = {.kind = DeviceKind::Cuda, .index = context->index()};
    request.stream = stream.handle();
  }

  std::shared_ptr<const cuda::DeviceContext> context;
  cuda::Stream stream;
  /// What NCCL reduces there has the bits of the CPU's.
  bool is_exact = false;
  /// Tensors have whole blocks of so many bytes to themselves.
  std::size_t block_bytes = 1;
};

/// Memory of a program on a GPU; empty ones have none.
class GpuTensor {
 public:
  GpuTensor(ProgramGpu& gpu, std::size_t bytes) : gpu_(&gpu), bytes_(bytes) {
    const std::size_t blocks = (bytes + gpu.block_bytes - 1) / gpu.block_bytes;
    if (bytes > 0) memory_ = cuda::DeviceMemory(gpu.context, blocks * gpu.block_bytes);
  }
  GpuTensor(ProgramGpu& gpu, Bytes values) : GpuTensor(gpu, values.size()) {
    write(std::move(values));
  }

  void* data() const noexcept { return reinterpret_cast<void*>(memory_.address()); }
  /// Queued on the program's stream. The driver may read pageable memory after the call returns.
  void write(Bytes values) {
    if (values.empty()) return;
    const Bytes& kept = written_.emplace_back(std::move(values));
    gpu_->stream.copy(memory_.address(), reinterpret_cast<cuda::DevicePointer>(kept.data()),
                      kept.size(), "writing a tensor of the test");
  }
  /// Waits for the program's stream.
  Bytes read() const {
    Bytes values(bytes_);
    if (bytes_ == 0) return values;
    constexpr const char* kWhat = "reading a tensor of the test";
    gpu_->stream.copy(reinterpret_cast<cuda::DevicePointer>(values.data()), memory_.address(),
                      bytes_, kWhat);
    gpu_->context->call(kWhat, &cuda::DriverApi::stream_synchronize, gpu_->stream.handle());
    return values;
  }

 private:
  ProgramGpu* gpu_;
  std::size_t bytes_;
  std::vector<Bytes> written_;
  cuda::DeviceMemory memory_;  // freeing it waits for what is queued
};

/// Sums a tensor of floats over all ranks, in place and in order with the program's stream.
inline Request sum_request_of(const GpuTensor& tensor, const ProgramGpu& gpu, std::size_t count) {
  Request request;
  request.shape = {static_cast<std::int64_t>(count)};
  request.input = request.output = tensor.data();
  gpu.place(request);
  return request;
}

}  // namespace ronde::test
