// SPDX-License-Identifier: Apache-2.0
#include "ronde/runtime.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "ronde/error.h"
#include "tests/support/ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

Request allreduce(std::vector<float>& values, const std::string& name) {
  Request request;
  request.name = name;
  request.shape = {static_cast<std::int64_t>(values.size())};
  request.input = request.output = values.data();
  return request;
}

}  // namespace

TEST_CASE("one rank alone sums itself") {
  run_group(1, [](int, Runtime& runtime) {
    std::vector<float> values{1, 2, 3};
    runtime.submit(allreduce(values, "x")).wait();
    check(values == std::vector<float>{1, 2, 3}, "the sum over one rank is its own");
  });
}

TEST_CASE("three ranks sum, many steps, by cache slot from the second step on") {
  run_group(3, [](int rank, Runtime& runtime) {
    for (int step = 0; step < 50; ++step) {
      std::vector<std::vector<float>> tensors;
      for (int i = 0; i < 5; ++i) {
        tensors.emplace_back(static_cast<std::size_t>(i + 1), static_cast<float>(rank + i + step));
      }
      std::vector<Work> works;
      // Every rank submits in another order.
      for (int i = 0; i < 5; ++i) {
        const auto k = static_cast<std::size_t>((i * (rank + 1)) % 5);
        works.push_back(runtime.submit(allreduce(tensors[k], "t" + std::to_string(k))));
      }
      for (const Work& work : works) work.wait();
      for (std::size_t i = 0; i < 5; ++i) {
        check(tensors[i][0] == static_cast<float>(3 + 3 * (static_cast<int>(i) + step)), "sum");
      }
    }
    for (const StatsGroup& group : runtime.stats()) {
      if (group.part != "response_cache") continue;
      check(group.counters[0].second == 49 * 5, "hits");
      check(group.counters[1].second == 5, "misses");
    }
  });
}
