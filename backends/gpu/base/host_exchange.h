// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "core/src/base/steps.h"
#include "ronde/plugin/backend.h"

namespace ronde::gpu {

/// Shares a few bytes of each rank with all ranks by the CPU's backend, for what peers of a
/// device's backend need to know. All ranks make the same exchanges in the same order.
///
/// Thread-safety: as Backend. One exchange at a time.
class HostExchange {
 public:
  /// `host`: outlives it.
  HostExchange(Backend& host, int size) : host_(host), size_(static_cast<std::size_t>(size)) {}

  /// Begins to exchange values of this type.
  template <typename Value>
  void start(const Value& own) {
    static_assert(std::is_trivially_copyable_v<Value>);
    start(std::as_bytes(std::span(&own, 1)));
  }
  /// Exchanges them: ends once the values of all ranks are here.
  template <typename Value>
  Steps share(Value own) {
    start(own);
    co_await until([this] { return poll(); });
  }
  /// The size is equal on all ranks.
  void start(std::span<const std::byte> own) {
    own_.assign(own.begin(), own.end());
    all_.resize(own_.size() * size_);
    counts_.assign(size_, own_.size());
    operation_ = host_.allgather(
        {.input = own_.data(), .output = all_.data(), .counts = counts_, .dtype = DataType::U8});
  }

  std::size_t size() const noexcept { return size_; }

  /// Whether the values of all ranks have arrived.
  bool poll() {
    if (operation_ && !operation_->poll()) return false;
    operation_.reset();
    return true;
  }

  /// Gives up an exchange in progress after a failure; the CPU's backend must still exist.
  void cancel() noexcept { operation_.reset(); }

  /// The value of a rank.
  template <typename Value>
  Value of(std::size_t rank) const {
    Value value;
    std::memcpy(&value, all_.data() + rank * sizeof(Value), sizeof(Value));
    return value;
  }
  template <typename Value>
  std::vector<Value> all() const {
    std::vector<Value> values;
    for (std::size_t rank = 0; rank < size_; ++rank) values.push_back(of<Value>(rank));
    return values;
  }

 private:
  Backend& host_;
  const std::size_t size_;
  std::vector<std::byte> own_;
  std::vector<std::byte> all_;
  std::vector<std::size_t> counts_;
  std::unique_ptr<Operation> operation_;
};

}  // namespace ronde::gpu
