// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "backends/cuda/driver_api.h"

namespace ronde::cuda {

// Addresses of a GPU, as numbers and as pointers that the host must not follow.

inline const void* pointer_to(DevicePointer address) noexcept {
  return reinterpret_cast<const void*>(address);
}
inline void* writable(DevicePointer address) noexcept {
  return reinterpret_cast<void*>(address);
}
inline DevicePointer address_of(const void* pointer) noexcept {
  return reinterpret_cast<DevicePointer>(pointer);
}

/// The element with that number, of `width` bytes.
inline const std::byte* at(const void* base, std::size_t element, std::size_t width) noexcept {
  return static_cast<const std::byte*>(base) + element * width;
}
inline std::byte* at(void* base, std::size_t element, std::size_t width) noexcept {
  return static_cast<std::byte*>(base) + element * width;
}

}  // namespace ronde::cuda
