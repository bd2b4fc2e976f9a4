// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "ronde/error.h"

namespace ronde::cuda {

/// A text of bounded length, as plain bytes; what does not fit is cut off.
template <std::size_t kSize>
void set_text(std::array<char, kSize>& to, const std::string& text) {
  to = {};
  std::memcpy(to.data(), text.data(), std::min(text.size(), kSize - 1));
}

/// What each rank says after a step that all of them try: why it cannot go on, or nothing.
struct Verdict {
  Verdict() = default;
  explicit Verdict(const std::string& text) { set_text(problem, text); }

  std::array<char, 256> problem{};
};

/// What goes wrong in `step`, or an empty text.
inline std::string problem_of(const std::function<void()>& step) {
  try {
    step();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

/// Of the first rank that has one, the same wherever it is asked; `ranks`: what they are called.
inline std::string first_problem(const std::vector<Verdict>& verdicts,
                                 const std::vector<int>& ranks) {
  for (std::size_t rank = 0; rank < verdicts.size(); ++rank) {
    const std::string problem = verdicts[rank].problem.data();
    if (!problem.empty()) return "rank " + std::to_string(ranks[rank]) + ": " + problem;
  }
  return {};
}

}  // namespace ronde::cuda
