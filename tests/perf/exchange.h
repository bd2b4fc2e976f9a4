// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ronde/ronde.h"
#include "tests/support/ranks/requests.h"

namespace ronde::perf {

using Tensors = std::vector<std::vector<float>>;

/// Sums each tensor over all ranks, all at once. Submits the last tensor first, as backward does.
inline void exchange(Tensors& tensors) {
  std::vector<Work> works;
  for (std::size_t i = tensors.size(); i-- > 0;) {
    const std::string name = std::to_string(i) + ": " + std::to_string(tensors[i].size());
    works.push_back(submit(test::sum_request(tensors[i], name)));
  }
  for (const Work& work : works) work.wait();
}

}  // namespace ronde::perf
