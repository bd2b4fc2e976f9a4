// SPDX-License-Identifier: Apache-2.0
#include "core/src/events/clock_bounds.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

namespace {

using namespace ronde;

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kS = 1000 * kMs;

}  // namespace

TEST_CASE("offset and drift of a clock are found within their uncertainty") {
  std::mt19937_64 random(3);
  std::exponential_distribution<double> delay(1.0 / 200'000);  // ns, behind the fastest
  const auto ahead = [](std::int64_t local) {
    return 7 * kS + static_cast<std::int64_t>(20e-6 * static_cast<double>(local));
  };
  ClockBounds bounds;
  CHECK_FALSE(bounds.first());
  const auto one_way = [&] { return 50'000 + static_cast<std::int64_t>(delay(random)); };
  for (std::int64_t told = kS; told < 61 * kS; told += 50 * kMs) {
    const std::int64_t sent = told + ahead(told) + one_way();
    std::int64_t now = sent - ahead(told) + one_way();
    bounds.note(told, sent, now);
  }
  for (const auto& offset : {bounds.first(), bounds.last()}) {
    REQUIRE(offset);
    const std::int64_t error = std::abs(offset->ahead_ns - ahead(offset->at_ns));
    CHECK(error <= offset->uncertainty_ns);
    CHECK(offset->uncertainty_ns < 200'000);
  }
  CHECK(bounds.first()->at_ns < 7 * kS);
  CHECK(bounds.last()->at_ns > 50 * kS);
}

TEST_CASE("messages that answer nothing give no offset alone") {
  ClockBounds bounds;
  bounds.note(0, 100 * kMs, 90 * kMs);
  CHECK_FALSE(bounds.last());
  bounds.note(80 * kMs, 100 * kMs, 90 * kMs);
  REQUIRE(bounds.last());
  CHECK(bounds.last()->ahead_ns == 15 * kMs);
  CHECK(bounds.last()->uncertainty_ns == 5 * kMs);
}
