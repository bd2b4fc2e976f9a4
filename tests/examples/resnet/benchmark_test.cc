// SPDX-License-Identifier: Apache-2.0
// How what was measured is summarised.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "common/benchmark/efficiency.h"
#include "common/benchmark/statistics.h"

namespace example {

TEST_CASE("mean, deviation and median of a list") {
  CHECK(mean({2, 4, 9}) == Approx(5));
  CHECK(standard_deviation({2, 4, 4, 4, 5, 5, 7, 9}) == Approx(2));
  CHECK(standard_deviation({3}) == 0);
  CHECK(median({9, 1, 5}) == 5);
  CHECK(median({9, 1, 5, 7}) == 6);
  CHECK(median({4}) == 4);
}

TEST_CASE("the efficiency is the ratio of the medians, with the range of the rounds") {
  const Efficiency result = summarize({{100, 90}, {200, 100}, {110, 99}});
  CHECK(result.median.step_ms == 110);
  CHECK(result.median.step_ms_unconnected == 99);
  CHECK(result.median.efficiency() == Approx(0.9));
  CHECK(result.lowest == Approx(0.5));
  CHECK(result.highest == Approx(0.9));
  const nlohmann::json json = nlohmann::json::parse(to_json("resnet50", 2, result));
  const nlohmann::json expected{{"model", "resnet50"},
                                {"ranks", 2},
                                {"step_ms", 110.0},
                                {"step_ms_unconnected", 99.0},
                                {"efficiency", 99.0 / 110.0}};
  CHECK(json == expected);
}

TEST_CASE("the use of the registration cache is told where there was any") {
  CHECK_FALSE(cache_use({{"executor", {{"operations", 3}}}}));
  CHECK_FALSE(cache_use({{"cuda", {{"registration_hits", 0}, {"registration_misses", 0}}}}));
  const auto use = cache_use({{"cuda",
                               {{"registration_hits", 90},
                                {"registration_misses", 8},
                                {"registration_evicted_for_room", 7}}},
                              {"nccl", {{"fallback_registration_hits", 2}}}});
  REQUIRE(use);
  CHECK(use->hits == 92);
  CHECK(use->uses == 100);
  const Efficiency result = summarize({{100, 90}});
  const nlohmann::json json = nlohmann::json::parse(to_json("edsr", 2, result, use));
  CHECK(json["registration_hit_rate"] == Approx(0.92));
}

TEST_CASE("ranks in step tell what waiting for each other costs") {
  const Efficiency result = summarize({{100, 90, 95}, {200, 100, 160}, {110, 99, 100}});
  CHECK(result.median.step_ms_in_step == 100);
  CHECK(result.median.efficiency_in_step() == Approx(0.99));
  CHECK(result.median.efficiency() == Approx(0.9));
  CHECK(nlohmann::json::parse(to_json("edsr", 2, result))["step_ms_in_step"] == 100.0);
}

}  // namespace example
