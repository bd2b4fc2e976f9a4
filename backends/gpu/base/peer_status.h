// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "backends/gpu/base/host_exchange.h"
#include "core/src/base/steps.h"
#include "ronde/error.h"

namespace ronde::cuda {

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
  } catch (const Error& error) {
    return error.what();
  }
}

/// Ends a step that all ranks try. Each rank shares `problem`, empty if it has none; then `problem`
/// is that of the first rank that has one, the same on all ranks. `names`: the ranks' numbers in
/// texts.
inline Steps agree(gpu::HostExchange& exchange, const std::vector<int>& names,
                   std::string& problem) {
  std::array<char, 256> own{};
  set_text(own, problem);
  co_await exchange.share(own);
  problem.clear();
  for (std::size_t rank = 0; rank < exchange.size() && problem.empty(); ++rank) {
    const auto text = exchange.of<std::array<char, 256>>(rank);
    if (text[0] != 0) problem = "rank " + std::to_string(names[rank]) + ": " + text.data();
  }
}

}  // namespace ronde::cuda
