// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "backends/gpu/driver/device_context.h"

namespace ronde::cuda {

/// The driver allocates blocks of this size, which several smaller allocations share. Other
/// processes map whole blocks.
constexpr std::size_t kBlockBytes = std::size_t{2} << 20;

/// Memory of a GPU, allocated by the driver, so that other processes can map it (which is not so
/// for all of the framework's).
///
/// Thread-safety: as a pointer. Its work must have run before it is destroyed.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// `bytes`: not 0. Throws DriverError, of result() kOutOfMemory if there is too little.
  DeviceMemory(const std::shared_ptr<const DeviceContext>& context, std::size_t bytes)
      : bytes_(bytes) {
    DevicePointer address = 0;
    context->call(
        "allocating " + std::to_string(bytes) + " bytes on GPU " + std::to_string(context->index()),
        &DriverApi::allocate, &address, bytes);
    memory_ = {context, address};
  }

  DevicePointer address() const noexcept { return memory_.get(); }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  Owned<DevicePointer, &DriverApi::free> memory_;
  std::size_t bytes_ = 0;
};

/// Page-locked host memory, for asynchronous copies between host and GPU. Pinning takes about 1 ms
/// per MiB.
///
/// Thread-safety: as DeviceMemory.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  /// `bytes`: not 0. Throws DriverError.
  PinnedMemory(const std::shared_ptr<const DeviceContext>& context, std::size_t bytes)
      : bytes_(bytes) {
    void* memory = nullptr;
    context->call("pinning " + std::to_string(bytes) + " bytes of host memory",
                  &DriverApi::host_allocate, &memory, bytes, kHostRegisterPortable);
    memory_ = {context, memory};
  }

  std::byte* data() const noexcept { return static_cast<std::byte*>(memory_.get()); }
  std::size_t bytes() const noexcept { return bytes_; }
  /// For copies: the driver distinguishes kinds of memory by address.
  DevicePointer address() const noexcept { return address_of(memory_.get()); }

 private:
  Owned<void*, &DriverApi::host_free> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace ronde::cuda
