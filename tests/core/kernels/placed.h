// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace ronde::test {

using Bytes = std::vector<std::byte>;

/// Memory at a chosen distance from a 64-byte boundary, between bytes that nobody may touch.
class Placed {
 public:
  Placed(std::size_t bytes, std::size_t offset) : memory_(bytes + 3 * kLine, kGuard) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    start_ = kLine + (kLine - address % kLine) % kLine + offset % kLine;
  }

  std::byte* data() { return memory_.data() + start_; }

  void set(const void* bytes, std::size_t count) { std::memcpy(data(), bytes, count); }

  /// Holds `count` bytes of `bytes`, and nothing was written before or after them.
  bool holds(const void* bytes, std::size_t count) {
    const auto untouched = [](std::byte byte) { return byte == kGuard; };
    const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(start_);
    return (count == 0 || std::memcmp(data(), bytes, count) == 0) &&
           std::all_of(memory_.begin(), begin, untouched) &&
           std::all_of(begin + static_cast<std::ptrdiff_t>(count), memory_.end(), untouched);
  }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr std::byte kGuard{0xa5};
  Bytes memory_;
  std::size_t start_ = 0;
};

}  // namespace ronde::test
