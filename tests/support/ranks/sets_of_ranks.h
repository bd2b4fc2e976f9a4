// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

namespace ronde::test {

inline Request in_set(ProcessSet set, Request request) {
  request.set = set;
  return request;
}

/// A sum over the ranks of `set`, of the number of each in the group plus one.
inline float sum_in(Runtime& runtime, ProcessSet set, const std::string& name = "s") {
  std::vector<float> values(3, static_cast<float>(runtime.topology().rank + 1));
  runtime.submit(in_set(set, sum_request(values, name))).wait();
  check(values[0] == values[2], "all elements alike");
  return values[0];
}

/// Groups of so many ranks, on one host and as if on several.
inline void on_all_placements(int size, const std::function<void(int, Runtime&)>& body) {
  std::vector<int> together(static_cast<std::size_t>(size)), pairs, in_turns;
  for (int rank = 0; rank < size; ++rank) {
    pairs.push_back(rank / 2);
    in_turns.push_back(rank % 2);
  }
  for (const auto& host_of : {together, pairs, in_turns}) run_on(host_of, body);
}

}  // namespace ronde::test
