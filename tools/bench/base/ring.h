// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "ronde/collective.h"

namespace ronde::tool {

/// Memory that a benchmark's buffers lie in.
class Pages {
 public:
  virtual ~Pages() = default;
  Pages() = default;
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  virtual std::byte* data() const = 0;
  virtual Device device() const { return {}; }
  /// The GPU, and whether ranks of this host share GPUs.
  /// @{
  virtual std::string device_name() const { return {}; }
  virtual bool is_shared() const { return false; }
  /// @}
  /// On a device: the stream that the others queue their work on.
  virtual void* stream() const { return nullptr; }
  virtual void zero(std::byte* at, std::size_t bytes) = 0;
  /// Copies from, to and within these pages; returns once that is done.
  virtual void copy(void* to, const void* from, std::size_t bytes) const = 0;
};

/// Pages of the host.
class HostPages final : public Pages {
 public:
  /// At least `bytes`, which are written to, so that they are real pages. Throws std::bad_alloc.
  explicit HostPages(std::size_t bytes) : memory_(std::aligned_alloc(kPage, round_up(bytes))) {
    if (memory_ == nullptr) throw std::bad_alloc();
    std::memset(memory_.get(), 0, round_up(bytes));
  }

  std::byte* data() const override { return static_cast<std::byte*>(memory_.get()); }
  void zero(std::byte* at, std::size_t bytes) override { std::memset(at, 0, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static constexpr std::size_t kPage = 4096;
  static std::size_t round_up(std::size_t bytes) { return (bytes / kPage + 1) * kPage; }
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  std::unique_ptr<void, Free> memory_;
};

/// Memory that is split into slots of one size, handed out in turn.
class Ring {
 public:
  /// On the host; throws std::bad_alloc.
  explicit Ring(std::size_t bytes) : Ring(std::make_unique<HostPages>(bytes)) {}
  explicit Ring(std::unique_ptr<Pages> pages) : pages_(std::move(pages)) {}

  Pages& pages() const { return *pages_; }

  /// Makes every slot `bytes` long and fills all with zeros. As many slots as `total` bytes hold,
  /// but at least one.
  void split(std::size_t bytes, std::size_t total) {
    slot_bytes_ = (bytes + kLine - 1) / kLine * kLine;
    slots_ = slot_bytes_ == 0 ? 1 : std::max<std::size_t>(total / slot_bytes_, 1);
    next_ = 0;
    pages_->zero(pages_->data(), slots_ * slot_bytes_);
  }

  /// The next slot: aligned to a cache line.
  std::byte* next() {
    last_ = pages_->data() + next_ * slot_bytes_;
    next_ = (next_ + 1) % slots_;
    return last_;
  }

  /// The slot if there is but one.
  std::byte* only() const { return slots_ == 1 ? pages_->data() : nullptr; }

  /// The last result of next().
  std::byte* last() const { return last_; }

 private:
  static constexpr std::size_t kLine = 64;

  std::unique_ptr<Pages> pages_;
  std::size_t slot_bytes_ = 0;
  std::size_t slots_ = 1;
  std::size_t next_ = 0;
  std::byte* last_ = nullptr;
};

}  // namespace ronde::tool
