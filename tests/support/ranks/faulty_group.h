// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/fakes/faulty_backend.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

namespace ronde::test {

/// Waits for what can only end with the group.
inline Death death_in_barrier(Runtime& runtime) {
  return death_of([&] { runtime.submit(barrier_request()).wait(); });
}

inline Death death_in_sum(Runtime& runtime, std::vector<float>& values) {
  return death_of([&] { runtime.submit(sum_request(values, "x")).wait(); });
}

/// A group whose backends have faults.
struct FaultyGroup {
  explicit FaultyGroup(int size) : FaultyGroup(std::vector<int>(static_cast<std::size_t>(size))) {}
  explicit FaultyGroup(const std::vector<int>& host_of, int most_leaders_below = kMostLeadersBelow)
      : group(host_of, most_leaders_below) {
    for (std::size_t i = 0; i < host_of.size(); ++i) faults.push_back(std::make_shared<Faults>());
  }

  RuntimeOptions options(int rank, Config config = test_config()) const {
    RuntimeOptions made = options_of(group, rank, std::move(config));
    made.backends["inproc"] =
        faulty_factory(group.backend_factory(), faults[static_cast<std::size_t>(rank)]);
    return made;
  }

  inproc::Group group;
  std::vector<std::shared_ptr<Faults>> faults;
};

}  // namespace ronde::test
