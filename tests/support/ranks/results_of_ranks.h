// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <catch2/catch.hpp>
#include <type_traits>

#include "tests/support/ranks/ranks.h"

namespace ronde::test {

/// What `body(rank)` returns on each rank. As run_ranks().
template <typename Body>
auto on_each_rank(int size, const Body& body) {
  std::vector<std::invoke_result_t<const Body&, int>> results(static_cast<std::size_t>(size));
  run_ranks(size, [&](int rank) { results[static_cast<std::size_t>(rank)] = body(rank); });
  return results;
}

/// All ranks were told of one death, that of `rank`, with these parts in its text.
inline void check_same_death(const std::vector<Death>& deaths, int rank,
                             const std::vector<std::string>& parts) {
  for (const Death& death : deaths) {
    CHECK(death == deaths[0]);
    CHECK(death.rank == rank);
    for (const std::string& part : parts) CHECK_THAT(death.text, Catch::Contains(part));
  }
}

}  // namespace ronde::test
