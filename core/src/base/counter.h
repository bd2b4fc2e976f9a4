// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace ronde {

/// A statistic. Thread-safety: one thread at a time writes, any thread reads; it orders no other
/// memory.
class Counter {
 public:
  void add(std::uint64_t amount = 1) noexcept { set(get() + amount); }
  /// Raises the value to `value` if that is larger.
  void raise_to(std::uint64_t value) noexcept {
    if (value > get()) set(value);
  }
  void set(std::uint64_t value) noexcept { value_.store(value, std::memory_order_relaxed); }
  std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

}  // namespace ronde
