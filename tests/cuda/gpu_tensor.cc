// SPDX-License-Identifier: Apache-2.0
#include "gpu_tensor.h"

namespace ronde::test {

GpuTensor::GpuTensor(ProgramGpu& gpu, std::size_t bytes) : gpu_(&gpu), bytes_(bytes) {
  const std::size_t blocks = (bytes + gpu.block_bytes - 1) / gpu.block_bytes;
  if (bytes > 0) memory_ = cuda::DeviceMemory(gpu.context, blocks * gpu.block_bytes);
}

GpuTensor::GpuTensor(ProgramGpu& gpu, const Bytes& values) : GpuTensor(gpu, values.size()) {
  write(values);
}

// Pageable memory has been read once the call returns.
void GpuTensor::write(const Bytes& values) {
  if (values.empty()) return;
  gpu_->stream.copy(memory_.address(), reinterpret_cast<cuda::DevicePointer>(values.data()),
                    values.size(), "writing a tensor of the test");
}

Bytes GpuTensor::read() const {
  Bytes values(bytes_);
  if (bytes_ == 0) return values;
  gpu_->stream.copy(reinterpret_cast<cuda::DevicePointer>(values.data()), memory_.address(), bytes_,
                    "reading a tensor of the test");
  const cuda::Current current(*gpu_->context);
  cuda::check(gpu_->context->api(), "reading a tensor of the test",
              gpu_->context->api().stream_synchronize, gpu_->stream.handle());
  return values;
}

}  // namespace ronde::test
