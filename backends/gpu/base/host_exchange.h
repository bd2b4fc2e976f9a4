// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
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

  /// Exchanges values of this type: ends once those of all ranks are here.
  template <typename Value>
  Steps share(Value own) {
    static_assert(std::is_trivially_copyable_v<Value>);
    const auto bytes = std::as_bytes(std::span(&own, 1));
    own_.assign(bytes.begin(), bytes.end());  // which outlive the coroutine
    all_.resize(sizeof own * size_);
    counts_.assign(size_, sizeof own);
    operation_ = host_.allgather(
        {.input = own_.data(), .output = all_.data(), .counts = counts_, .dtype = DataType::U8});
    co_await until_finished(*operation_);
    operation_.reset();
  }

  /// Gives up an exchange in progress after a failure; the CPU's backend must still exist.
  void cancel() noexcept { operation_.reset(); }

  /// The values by rank.
  template <typename Value>
  std::vector<Value> all() const {
    std::vector<Value> values(size_);
    std::memcpy(values.data(), all_.data(), all_.size());
    return values;
  }

 private:
  Backend& host_;
  const std::size_t size_;
  std::vector<std::byte> own_, all_;
  std::vector<std::size_t> counts_;
  std::unique_ptr<Operation> operation_;
};

/// A text of bounded length, as plain bytes; what does not fit is cut off.
template <std::size_t kSize>
void set_text(std::array<char, kSize>& to, const std::string& text) {
  to = {};
  std::memcpy(to.data(), text.data(), std::min(text.size(), kSize - 1));
}

/// What goes wrong in `step`, or an empty text.
inline std::string problem_of(const std::function<void()>& step) {
  try {
    step();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Ends a step that all ranks try. Each rank shares `problem`, empty if it has none; then `problem`
/// is that of the first rank that has one, the same on all ranks. `names`: the ranks' numbers in
/// texts.
inline Steps agree(HostExchange& exchange, const std::vector<int>& names, std::string& problem) {
  std::array<char, 256> own{};
  set_text(own, problem);
  co_await exchange.share(own);
  problem.clear();
  const auto texts = exchange.all<std::array<char, 256>>();
  for (std::size_t rank = 0; rank < texts.size() && problem.empty(); ++rank) {
    if (texts[rank][0] == 0) continue;
    problem = "rank " + std::to_string(names[rank]) + ": " + texts[rank].data();
  }
}

}  // namespace ronde::gpu
