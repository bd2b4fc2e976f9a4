// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/announcer.h"

#include <catch2/catch.hpp>

#include "tests/core/agree/submissions.h"

namespace {

using namespace ronde;
using namespace ronde::test;

const TimePoint kStart{std::chrono::hours(1)};

/// A response to `key` with two elements: an error, which may be meant for one rank only, or a
/// slot.
Response response(const std::string& key, const std::string& error = "", int only_rank = -1,
                  int slot = -1) {
  return {key, error, only_rank, spec_for(key), {}, true, slot};
}

AppliedDecision apply(Announcer& announcer, std::uint64_t number,
                      std::vector<Response> responses = {}) {
  DecisionMessage decision;
  decision.number = number;
  decision.responses = std::move(responses);
  return announcer.apply(decision);
}

}  // namespace

TEST_CASE("decisions must be applied in order, and be about what was submitted") {
  ResponseCache cache(4);
  Announcer announcer(cache);
  CHECK_THROWS_WITH(apply(announcer, 2), Catch::Contains("decision 2 came after decision 0"));
  CHECK_THROWS_WITH(apply(announcer, 1, {response("x")}),
                    Catch::Contains("this rank has not submitted"));
}

TEST_CASE("operations of an invalid decision can still be drained") {
  ResponseCache cache(0);
  Announcer announcer(cache);
  for (const char* const name : {"x", "y"}) {
    Submission waited_for = submission(name);
    waited_for.work =
        std::make_shared<WorkState>(name, std::weak_ptr<WaitHelper>(), std::shared_ptr<Logger>());
    announcer.add(std::move(waited_for));
  }
  Response stands_in = response("y");
  stands_in.joined = {0};
  const Response refused = response("y", "refused");
  CHECK_THROWS_AS(apply(announcer, 1, {response("x"), stands_in, refused, response("unknown")}),
                  Error);
  CHECK(announcer.drain().size() == 2);
}

TEST_CASE("an operation that loses its slot and fails in one decision is not announced again") {
  ResponseCache cache(0);
  Announcer announcer(cache);
  announcer.add(submission("x"));
  static_cast<void>(announcer.announce(kStart, false));
  REQUIRE(apply(announcer, 1, {response("x", "", -1, 0)}).agreed.size() == 1);
  announcer.add(submission("x"));
  announcer.add(submission("y"));
  CHECK(announcer.announce(kStart, false)->cached.test(0));
  const Response evicting = response("y", "", -1, 0);
  REQUIRE(apply(announcer, 2, {evicting, response("x", "timed out", 0)}).refused.size() == 1);
  CHECK_FALSE(announcer.announce(kStart, false));
}
