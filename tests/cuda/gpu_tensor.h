// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "backends/cuda/device_context.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/stream.h"

namespace ronde::test {

using Bytes = std::vector<std::byte>;

/// A GPU as a program sees it, with a stream of its own: a fake one or a real one.
struct ProgramGpu {
  ProgramGpu(const std::shared_ptr<const cuda::DriverApi>& api, int index)
      : context(std::make_shared<cuda::DeviceContext>(api, index)), stream(context) {}

  std::shared_ptr<const cuda::DeviceContext> context;
  cuda::Stream stream;
  /// Tensors have whole blocks of so many bytes to themselves.
  std::size_t block_bytes = 1;
};

/// Memory of a program on a GPU; empty ones have none.
class GpuTensor {
 public:
  GpuTensor(ProgramGpu& gpu, std::size_t bytes);
  GpuTensor(ProgramGpu& gpu, const Bytes& values);

  void* data() const noexcept { return reinterpret_cast<void*>(memory_.address()); }
  /// Queued on the program's stream.
  void write(const Bytes& values);
  /// Waits for the program's stream.
  Bytes read() const;

 private:
  ProgramGpu* gpu_;
  std::size_t bytes_;
  cuda::DeviceMemory memory_;
};

}  // namespace ronde::test
