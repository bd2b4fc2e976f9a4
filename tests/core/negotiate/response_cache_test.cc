// SPDX-License-Identifier: Apache-2.0
#include "core/src/negotiate/response_cache.h"

#include <catch2/catch.hpp>

#include "ronde/error.h"
#include "tests/core/negotiate/submissions.h"

namespace {

using namespace ronde;
using ronde::test::meta_with;

RequestMeta gather_meta(std::int64_t rows) {
  RequestMeta meta = meta_with({rows, 3});
  meta.kind = Collective::Allgather;
  return meta;
}

}  // namespace

TEST_CASE("a cached response is found by its name and the same request only") {
  ResponseCache cache(0);
  cache.put(5, {"x", meta_with({2}), {}});
  CHECK(cache.find("x", meta_with({2})) == 5U);
  CHECK(cache.at(5).name == "x");
  for (const std::string name : {"y", ""}) CHECK_FALSE(cache.find(name, meta_with({2})));
  using Change = void (*)(RequestMeta&);
  const Change changes[] = {[](RequestMeta& meta) { meta.kind = Collective::Broadcast; },
                            [](RequestMeta& meta) { meta.dtype = DataType::F64; },
                            [](RequestMeta& meta) { meta.op = ReduceOp::Max; },
                            [](RequestMeta& meta) { meta.device = DeviceKind::Cuda; },
                            [](RequestMeta& meta) { meta.set = 1; },
                            [](RequestMeta& meta) { meta.root = 1; },
                            [](RequestMeta& meta) { meta.prescale = 2; },
                            [](RequestMeta& meta) { meta.postscale = 2; },
                            [](RequestMeta& meta) { meta.shape = {3}; },
                            [](RequestMeta& meta) { meta.splits = {2}; }};
  for (const Change change : changes) {
    RequestMeta meta = meta_with({2});
    change(meta);
    CHECK_FALSE(cache.find("x", meta));
  }
}

TEST_CASE("a slot that is filled again forgets what it held") {
  ResponseCache cache(0);
  cache.put(0, {"x", meta_with({2}), {}});
  cache.put(0, {"y", meta_with({4}), {}});
  CHECK_FALSE(cache.find("x", meta_with({2})));
  CHECK(cache.find("y", meta_with({4})) == 0U);
  cache.put(0, {"y", meta_with({5}), {}});
  CHECK_FALSE(cache.find("y", meta_with({4})));
  CHECK(cache.find("y", meta_with({5})) == 0U);
}

TEST_CASE("operations without a name are found by what they are, of two alike in the later slot") {
  ResponseCache cache(0);
  cache.put(0, {"", meta_with({2}), {}});
  cache.put(1, {"", meta_with({3}), {}});
  CHECK(cache.find("", meta_with({2})) == 0U);
  CHECK(cache.find("", meta_with({3})) == 1U);
  cache.put(2, {"", meta_with({3}), {}});
  CHECK(cache.find("", meta_with({3})) == 2U);
  for (const std::uint32_t slot : {0U, 1U}) cache.put(slot, {"x", meta_with({9}), {}});
  CHECK_FALSE(cache.find("", meta_with({2})));
  CHECK(cache.find("", meta_with({3})) == 2U);
}

TEST_CASE("scales that differ in the last bit are different operations without a name") {
  RequestMeta a = meta_with({2});
  RequestMeta b = a;
  a.prescale = 0.1;
  b.prescale = std::nextafter(0.1, 1.0);
  ResponseCache cache(0);
  cache.put(0, {"", a, {}});
  CHECK(cache.find("", a) == 0U);
  CHECK_FALSE(cache.find("", b));
}

TEST_CASE("an allgather is found by the rows of the rank that asks") {
  ResponseCache second(1);
  second.put(0, {"g", gather_meta(4), {{4, 7}}});
  CHECK(second.find("g", gather_meta(7)) == 0U);
  CHECK_FALSE(second.find("g", gather_meta(4)));
  CHECK(second.at(0).request_of(0) == gather_meta(4));
  CHECK(second.at(0).request_of(1) == gather_meta(7));
}

TEST_CASE("an alltoall is found by whether the rank that asks gives splits, not by which") {
  const auto meta_of = [](std::vector<std::int64_t> splits) {
    RequestMeta meta = gather_meta(4);
    meta.kind = Collective::Alltoall;
    meta.splits = std::move(splits);
    leave_out_rows(meta, 2);
    return meta;
  };
  for (const char* const name : {"a", ""}) {
    ResponseCache second(1);
    second.put(0, {name, meta_of({}), {{4, kHasSplits}}});
    CHECK(second.find(name, meta_of({1, 3})) == 0U);
    CHECK(second.find(name, meta_of({3, 1})) == 0U);
    CHECK_FALSE(second.find(name, meta_of({3, 2})));
    CHECK_FALSE(second.find(name, meta_of({})));
    CHECK(second.at(0).request_of(0) == meta_of({}));
    CHECK(second.at(0).request_of(1) == meta_of({1, 3}));
    second.put(0, {name, meta_of({1, 3}), {{kHasSplits, 4}}});
    CHECK(second.find(name, meta_of({})) == 0U);
    CHECK_FALSE(second.find(name, meta_of({1, 3})));
    CHECK(second.at(0).request_of(0) == meta_of({0, 4}));
  }
}

TEST_CASE("a slot that was never filled is an error") {
  ResponseCache cache(3);
  CHECK_THROWS_WITH(cache.at(0), Catch::Contains("this rank") && Catch::Contains("slot 0"));
  cache.put(2, {"x", meta_with({1}), {}});
  CHECK_THROWS_AS(cache.at(1), Error);
  CHECK_THROWS_AS(cache.at(3), Error);
}
