// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace ronde::tool {

/// Memory that is split into slots of one size, handed out in turn.
class Ring {
 public:
  /// Room for `bytes`, which are written to, so that they are real pages. Throws std::bad_alloc.
  explicit Ring(std::size_t bytes)
      : capacity_(round_up(bytes)), memory_(std::aligned_alloc(kPage, capacity_)) {
    if (memory_ == nullptr) throw std::bad_alloc();
    std::memset(memory_.get(), 0, capacity_);
  }

  /// Makes every slot `bytes` long and fills all with zeros. As many slots as `total` bytes hold,
  /// but at least one.
  void split(std::size_t bytes, std::size_t total) {
    slot_bytes_ = (bytes + kLine - 1) / kLine * kLine;
    slots_ = slot_bytes_ == 0 ? 1 : std::max<std::size_t>(total / slot_bytes_, 1);
    next_ = 0;
    std::memset(memory_.get(), 0, slots_ * slot_bytes_);
  }

  /// The next slot: aligned to a cache line.
  std::byte* next() {
    last_ = static_cast<std::byte*>(memory_.get()) + next_ * slot_bytes_;
    next_ = (next_ + 1) % slots_;
    return last_;
  }

  /// The slot if there is but one.
  std::byte* only() const { return slots_ == 1 ? static_cast<std::byte*>(memory_.get()) : nullptr; }

  /// What next() gave last.
  std::byte* last() const { return last_; }

  static std::size_t round_up(std::size_t bytes) { return (bytes / kPage + 1) * kPage; }

 private:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kLine = 64;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  std::size_t capacity_;
  std::unique_ptr<void, Free> memory_;
  std::size_t slot_bytes_ = 0;
  std::size_t slots_ = 1;
  std::size_t next_ = 0;
  std::byte* last_ = nullptr;
};

}  // namespace ronde::tool
