// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <new>

namespace ronde {

/// Host memory in which a backend reduces packed tensors. Grows on demand up to its limit, so that
/// small programs do not pay for 64 MiB.
class FusionBuffer {
 public:
  /// `limit` in bytes, 64 at least.
  explicit FusionBuffer(std::size_t limit) : limit_(std::max(limit, kLine)) {}

  std::size_t limit() const noexcept { return limit_; }
  std::size_t capacity() const noexcept { return capacity_; }

  /// Returns memory of at least `bytes` (at most the limit), aligned to a cache line. Earlier
  /// contents are lost if it grows.
  std::byte* reserve(std::size_t bytes) {
    if (bytes > capacity_) {
      const std::size_t wanted = std::min(std::max(bytes, 2 * capacity_), limit_);
      memory_.reset();
      capacity_ = 0;
      // The list node of abandon() lies before the data, in a cache line of its own.
      memory_.reset(static_cast<std::byte*>(::operator new(wanted + kLine, kAlignment)));
      capacity_ = wanted;
    }
    return memory_ ? memory_.get() + kLine : nullptr;
  }

  /// Gives the memory up without freeing it: after a failure, a library or a peer may still write
  /// to it at any time. It stays reachable, so that leak checkers can tell it from a leak.
  void abandon() noexcept {
    if (!memory_) return;
    auto* node = new (memory_.release()) Abandoned{abandoned_.load()};
    while (!abandoned_.compare_exchange_weak(node->next, node)) {
    }
    capacity_ = 0;
  }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr std::align_val_t kAlignment{kLine};

  /// A node at the beginning of abandoned memory, so that abandoning cannot fail for want of
  /// memory.
  struct Abandoned {
    Abandoned* next;
  };
  struct Free {
    void operator()(std::byte* memory) const noexcept { ::operator delete(memory, kAlignment); }
  };

  static inline std::atomic<Abandoned*> abandoned_{nullptr};

  const std::size_t limit_;
  std::size_t capacity_ = 0;
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace ronde
