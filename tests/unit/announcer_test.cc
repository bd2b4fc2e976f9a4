// SPDX-License-Identifier: Apache-2.0
#include "core/src/announcer.h"

#include <catch2/catch.hpp>

#include "ronde/error.h"
#include "tests/unit/submissions.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using std::chrono::milliseconds;
using TimePoint = Announcer::TimePoint;

const TimePoint kStart{std::chrono::hours(1)};

}  // namespace

TEST_CASE("decisions must be applied in order") {
  Announcer announcer(0);
  DecisionMessage decision;
  decision.number = 2;
  CHECK_THROWS_WITH(announcer.apply(decision), Catch::Contains("decision 2 came after decision 0"));
}

TEST_CASE("a decision on what was never submitted is nonsense") {
  Announcer announcer(4);
  DecisionMessage decision;
  decision.number = 1;
  decision.responses = {{"x", "", -1, meta_with({2}), {}, true, -1}};
  CHECK_THROWS_WITH(announcer.apply(decision), Catch::Contains("this rank has not submitted"));
}

TEST_CASE("messages are announced in full, and learn from whom they come") {
  Announcer announcer(1);
  for (int i = 0; i < 2; ++i) {
    Submission made = submission("");
    made.key = message_key(static_cast<std::uint64_t>(i));
    made.request.kind = Collective::Recv;
    made.request.peer = kAnyRank;
    made.meta = meta_of(made.request);
    announcer.add(std::move(made));
  }
  CHECK(announcer.pending_names() == std::vector<std::string>(2, "recv from any rank (tag 0)"));
  const auto ready = announcer.announce(kStart, false);
  REQUIRE(ready);
  REQUIRE(ready->requests.size() == 2);
  CHECK(ready->requests[1].meta.peer == kAnyRank);
  DecisionMessage decision;
  decision.number = 1;
  RequestMeta agreed = ready->requests[1].meta;
  agreed.peer = 3;
  decision.responses = {{message_key(0), "", 0, agreed, {}, true, -1},  // of another rank
                        {message_key(1), "", 1, agreed, {}, true, -1}};
  const AppliedDecision applied = announcer.apply(decision);
  REQUIRE(applied.agreed.size() == 1);
  CHECK(applied.agreed[0].submission.key == message_key(1));
  CHECK(applied.agreed[0].submission.request.peer == 3);
  CHECK(announcer.drain().size() == 1);
}

TEST_CASE("operations taken by a decision that makes no sense are still there to be failed") {
  Announcer announcer(0);
  for (const char* const name : {"x", "y"}) {
    Submission waited_for = submission(name);
    waited_for.work =
        std::make_shared<WorkState>(name, std::weak_ptr<WaitHelper>(), std::shared_ptr<Logger>());
    announcer.add(std::move(waited_for));
  }
  DecisionMessage decision;
  decision.number = 1;
  Response stands_in{"y", "", -1, meta_with({2}), {}, true, -1};
  stands_in.joined = {0};
  decision.responses = {{"x", "", -1, meta_with({2}), {}, true, -1},
                        stands_in,
                        {"y", "refused", -1, meta_with({2}), {}, true, -1},
                        {"unknown", "", -1, meta_with({2}), {}, true, -1}};
  CHECK_THROWS_AS(announcer.apply(decision), Error);
  CHECK(announcer.drain().size() == 2);
}

TEST_CASE("an announcer tells each thing once") {
  Announcer announcer(0);
  CHECK_FALSE(announcer.announce(kStart, false));
  announcer.add(submission("x", kStart + milliseconds(5)));
  CHECK(announcer.next_deadline() == kStart + milliseconds(5));
  CHECK(announcer.announce(kStart, false)->requests.size() == 1);
  CHECK_FALSE(announcer.announce(kStart, false));
  CHECK(announcer.announce(kStart + milliseconds(5), false)->expired.size() == 1);
  CHECK_FALSE(announcer.announce(kStart + milliseconds(9), false));
  CHECK_FALSE(announcer.next_deadline());
  CHECK(announcer.announce(kStart, true)->shutdown);
  CHECK(announcer.announced_shutdown());
  CHECK_FALSE(announcer.announce(kStart, true));
  CHECK(announcer.pending_names() == std::vector<std::string>{"allreduce 'x'"});
  CHECK(announcer.drain().size() == 1);
  CHECK(announcer.pending_names().empty());
}

TEST_CASE("an error meant for another rank leaves this one's operation alone") {
  Announcer announcer(0);
  announcer.add(submission("x"));
  DecisionMessage decision;
  decision.number = 1;
  decision.responses = {{"x", "too late", 1, meta_with({2}), {}, true, -1}};
  CHECK(announcer.apply(decision).refused.empty());
  decision.number = 2;
  decision.responses[0].only_rank = 0;
  const AppliedDecision applied = announcer.apply(decision);
  REQUIRE(applied.refused.size() == 1);
  CHECK(applied.refused[0].text == "too late");
}

TEST_CASE("an operation that loses its slot and fails in one decision is not announced again") {
  Announcer announcer(0);
  announcer.add(submission("x"));
  static_cast<void>(announcer.announce(kStart, false));
  DecisionMessage decision;
  decision.number = 1;
  decision.responses = {{"x", "", -1, meta_with({2}), {}, true, 0}};
  REQUIRE(announcer.apply(decision).agreed.size() == 1);
  announcer.add(submission("x"));
  announcer.add(submission("y"));
  CHECK(announcer.announce(kStart, false)->cached.test(0));
  decision.number = 2;
  decision.responses = {{"y", "", -1, meta_with({2}), {}, true, 0},
                        {"x", "timed out", 0, meta_with({2}), {}, true, -1}};
  REQUIRE(announcer.apply(decision).refused.size() == 1);
  CHECK_FALSE(announcer.announce(kStart, false));
}
