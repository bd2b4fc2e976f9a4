// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

namespace ronde {

/// Host memory in which a backend reduces packed tensors. Grows on demand up to its limit, so that
/// small programs do not pay for 64 MiB.
class FusionBuffer {
 public:
  /// `limit` in bytes, 64 at least.
  explicit FusionBuffer(std::size_t limit);

  std::size_t limit() const noexcept { return limit_; }
  std::size_t capacity() const noexcept { return capacity_; }

  /// Returns memory of at least `bytes` (at most the limit), aligned to a cache line. Earlier
  /// contents are lost if it grows.
  std::byte* reserve(std::size_t bytes);

  /// Gives the memory up without freeing it: after a failure, a library or a peer may still write
  /// to it at any time. It stays reachable, so that leak checkers can tell it from a leak.
  void abandon() noexcept;

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };

  const std::size_t limit_;
  std::size_t capacity_ = 0;
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace ronde
