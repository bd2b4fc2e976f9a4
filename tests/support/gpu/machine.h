// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "backends/gpu/driver/memory.h"
#include "backends/gpu/driver/stream.h"
#include "backends/gpu/kernels/kernel_set.h"

namespace ronde::test {

/// The driver and the kernels of a Machine. Without a GPU, the case is skipped.
/// @{
std::shared_ptr<const cuda::DriverApi> machine_driver();
const void* machine_kernels();
/// @}

/// A GPU with Ronde's kernels: that of tests/cuda is a fake, that of tests/gpu/hardware is one.
/// Cases that are written for it run on both.
struct Machine {
  /// Waits until all that was queued has run.
  void finish() { context->call("waiting", &cuda::DriverApi::stream_synchronize, stream.handle()); }

  const std::shared_ptr<const cuda::DeviceContext> context =
      std::make_shared<cuda::DeviceContext>(machine_driver(), 0);
  cuda::KernelSet kernels{context, machine_kernels()};
  cuda::Stream stream{context};
};

/// Memory that both the host and the GPU reach, at one address.
class SharedBytes {
 public:
  SharedBytes(Machine& machine, std::size_t bytes) : block_(machine.context, bytes) {
    std::memset(block_.data(), 0, bytes);
  }
  SharedBytes(Machine& machine, const std::vector<std::byte>& values)
      : SharedBytes(machine, values.size()) {
    std::memcpy(block_.data(), values.data(), values.size());
  }

  std::byte* at(std::size_t offset) const noexcept { return block_.data() + offset; }
  cuda::DevicePointer address(std::size_t offset = 0) const noexcept {
    return block_.address() + offset;
  }
  /// Whether it begins with these bits.
  bool equals(const std::vector<std::byte>& values) const noexcept {
    return std::memcmp(block_.data(), values.data(), values.size()) == 0;
  }

 private:
  cuda::PinnedMemory block_;
};

}  // namespace ronde::test
