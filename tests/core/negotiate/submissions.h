// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/src/submit/submission.h"

namespace ronde::test {

inline RequestMeta meta_with(std::vector<std::int64_t> shape) {
  RequestMeta meta;
  meta.shape = std::move(shape);
  return meta;
}

/// The members of the set of all ranks, of which there are `size`.
inline std::vector<int> everybody(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Of two elements, with its key; without a handle.
inline Submission submission(
    const std::string& name,
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max()) {
  Submission made;
  made.request.name = made.key = name;
  made.request.shape = {2};
  made.meta = meta_of(made.request);
  if (deadline != std::chrono::steady_clock::time_point::max()) made.deadline = deadline;
  return made;
}

}  // namespace ronde::test
