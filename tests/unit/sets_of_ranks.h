// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/support/requests.h"

namespace ronde::test {

/// The sum over the ranks of `set`, of the number of each in the group plus one.
inline float sum_in(Runtime& runtime, ProcessSet set, const std::string& name = "s") {
  std::vector<float> values(3, static_cast<float>(runtime.topology().rank + 1));
  Request request = sum_request(values, name);
  request.set = set;
  runtime.submit(request).wait();
  check(values[0] == values[2], "all elements alike");
  return values[0];
}

inline float expected_sum(const std::vector<int>& ranks) {
  return static_cast<float>(std::accumulate(ranks.begin(), ranks.end(), 0)) +
         static_cast<float>(ranks.size());
}

/// A sum that is already submitted; the buffer lives in it.
struct Pending {
  Pending(Runtime& runtime, ProcessSet set, const std::string& name)
      : values(3, static_cast<float>(runtime.topology().rank + 1)) {
    Request request = sum_request(values, name);
    request.set = set;
    work = runtime.submit(request);
  }
  float result() {
    work.wait();
    return values[0];
  }

  std::vector<float> values;
  Work work;
};

/// Groups of so many ranks, on one host and as if on several.
inline void on_all_placements(int size, const std::function<void(int, Runtime&)>& body) {
  std::vector<std::vector<int>> placements = {std::vector<int>(static_cast<std::size_t>(size), 0)};
  std::vector<int> pairs, apart;
  for (int rank = 0; rank < size; ++rank) {
    pairs.push_back(rank / 2);
    apart.push_back(rank % 2);
  }
  placements.push_back(pairs);
  placements.push_back(apart);
  for (const std::vector<int>& host_of : placements) run_on(host_of, body);
}

}  // namespace ronde::test
