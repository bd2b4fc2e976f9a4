// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/src/op/submission.h"

namespace ronde::test {

inline OpSpec spec_with(std::vector<std::int64_t> shape) {
  OpSpec spec;
  spec.shape = std::move(shape);
  return spec;
}

/// The spec of the operation with this key.
inline SpecPtr spec_for(const std::string& key, OpSpec spec = spec_with({2})) {
  if (!is_unnamed(key) && !is_message(key)) spec.name = key;
  return share(std::move(spec));
}

/// The members of the set of all ranks, of which there are `size`.
inline std::vector<int> everybody(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Returns a submission of two elements with its key, without a handle.
inline Submission submission(
    const std::string& name,
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max()) {
  Submission made;
  Request request;
  request.name = name;
  request.shape = {2};
  made.key.spec = share(spec_of(request));
  if (deadline != std::chrono::steady_clock::time_point::max()) made.deadline = deadline;
  return made;
}

}  // namespace ronde::test
