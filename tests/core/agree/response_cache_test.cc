// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/response_cache.h"

#include <catch2/catch.hpp>

#include "ronde/error.h"
#include "tests/core/agree/submissions.h"

namespace {

using namespace ronde;
using ronde::test::spec_for;
using ronde::test::spec_with;

}  // namespace

TEST_CASE("scales that differ in the last bit are different operations without a name") {
  OpSpec a = spec_with({2});
  OpSpec b = a;
  a.prescale = 0.1;
  b.prescale = std::nextafter(0.1, 1.0);
  ResponseCache cache(0);
  cache.put(0, {spec_for("", a), {}});
  CHECK(cache.find(spec_for("", a)) == 0U);
  CHECK_FALSE(cache.find(spec_for("", b)));
}

TEST_CASE("a slot that was never filled is an error") {
  ResponseCache cache(3);
  CHECK_THROWS_WITH(cache.at(0), Catch::Contains("this rank") && Catch::Contains("slot 0"));
  cache.put(2, {spec_for("x", spec_with({1})), {}});
  CHECK_THROWS_AS(cache.at(1), Error);
  CHECK_THROWS_AS(cache.at(3), Error);
}

TEST_CASE("a slot that a rank announces twice is refused, by itself or with its host") {
  const TimePoint now{};
  SlotTable table(3);
  const std::size_t host = table.sender_of({1, 2});
  table.add(0, 5, true, now);
  CHECK_THROWS_AS(table.add(0, 5, true, now), Error);
  table.add(1, 5, true, now);
  CHECK_THROWS_AS(table.add(host, 5, true, now), Error);
}
