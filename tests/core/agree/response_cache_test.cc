// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/response_cache.h"

#include <catch2/catch.hpp>

#include "ronde/error.h"
#include "tests/core/agree/submissions.h"

namespace {

using namespace ronde;
using ronde::test::spec_for;
using ronde::test::spec_with;

OpSpec gather(std::int64_t rows) {
  OpSpec spec = spec_with({rows, 3});
  spec.kind = Collective::Allgather;
  return spec;
}

}  // namespace

TEST_CASE("a cached response is found by its name and the same spec only") {
  ResponseCache cache(0);
  cache.put(5, {spec_for("x", spec_with({2})), {}});
  CHECK(cache.find(spec_for("x", spec_with({2}))) == 5U);
  CHECK(cache.at(5).spec->name == "x");
  for (const std::string name : {"y", ""}) CHECK_FALSE(cache.find(spec_for(name, spec_with({2}))));
  using Change = void (*)(OpSpec&);
  const Change changes[] = {[](OpSpec& spec) { spec.kind = Collective::Broadcast; },
                            [](OpSpec& spec) { spec.dtype = DataType::F64; },
                            [](OpSpec& spec) { spec.op = ReduceOp::Max; },
                            [](OpSpec& spec) { spec.device = DeviceKind::Cuda; },
                            [](OpSpec& spec) { spec.set = 1; },
                            [](OpSpec& spec) { spec.root = 1; },
                            [](OpSpec& spec) { spec.prescale = 2; },
                            [](OpSpec& spec) { spec.postscale = 2; },
                            [](OpSpec& spec) { spec.shape = {3}; },
                            [](OpSpec& spec) { spec.splits = {2}; }};
  for (const Change change : changes) {
    OpSpec spec = spec_with({2});
    change(spec);
    CHECK_FALSE(cache.find(spec_for("x", spec)));
  }
}

TEST_CASE("a slot that is filled again forgets what it held") {
  ResponseCache cache(0);
  cache.put(0, {spec_for("x", spec_with({2})), {}});
  cache.put(0, {spec_for("y", spec_with({4})), {}});
  CHECK_FALSE(cache.find(spec_for("x", spec_with({2}))));
  CHECK(cache.find(spec_for("y", spec_with({4}))) == 0U);
  cache.put(0, {spec_for("y", spec_with({5})), {}});
  CHECK_FALSE(cache.find(spec_for("y", spec_with({4}))));
  CHECK(cache.find(spec_for("y", spec_with({5}))) == 0U);
}

TEST_CASE("operations without a name are found by what they are, of two alike in the later slot") {
  ResponseCache cache(0);
  cache.put(0, {spec_for("", spec_with({2})), {}});
  cache.put(1, {spec_for("", spec_with({3})), {}});
  CHECK(cache.find(spec_for("", spec_with({2}))) == 0U);
  CHECK(cache.find(spec_for("", spec_with({3}))) == 1U);
  cache.put(2, {spec_for("", spec_with({3})), {}});
  CHECK(cache.find(spec_for("", spec_with({3}))) == 2U);
  for (const std::uint32_t slot : {0U, 1U}) cache.put(slot, {spec_for("x", spec_with({9})), {}});
  CHECK_FALSE(cache.find(spec_for("", spec_with({2}))));
  CHECK(cache.find(spec_for("", spec_with({3}))) == 2U);
}

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

TEST_CASE("an allgather is found by the rows of the rank that asks") {
  ResponseCache second(1);
  second.put(0, {spec_for("g", gather(4)), {{4, 7}}});
  CHECK(second.find(spec_for("g", gather(7))) == 0U);
  CHECK_FALSE(second.find(spec_for("g", gather(4))));
  CHECK(is_same(second.at(0).spec_of(0), spec_for("g", gather(4))));
  CHECK(is_same(second.at(0).spec_of(1), spec_for("g", gather(7))));
}

TEST_CASE("an alltoall is found by whether the rank that asks gives splits, not by which") {
  const auto alltoall = [](std::vector<std::int64_t> splits) {
    OpSpec spec = gather(4);
    spec.kind = Collective::Alltoall;
    spec.splits = std::move(splits);
    leave_out_rows(spec, 2);
    return spec;
  };
  for (const char* const name : {"a", ""}) {
    ResponseCache second(1);
    second.put(0, {spec_for(name, alltoall({})), {{4, kHasSplits}}});
    CHECK(second.find(spec_for(name, alltoall({1, 3}))) == 0U);
    CHECK(second.find(spec_for(name, alltoall({3, 1}))) == 0U);
    CHECK_FALSE(second.find(spec_for(name, alltoall({3, 2}))));
    CHECK_FALSE(second.find(spec_for(name, alltoall({}))));
    CHECK(is_same(second.at(0).spec_of(0), spec_for(name, alltoall({}))));
    CHECK(is_same(second.at(0).spec_of(1), spec_for(name, alltoall({1, 3}))));
    second.put(0, {spec_for(name, alltoall({1, 3})), {{kHasSplits, 4}}});
    CHECK(second.find(spec_for(name, alltoall({}))) == 0U);
    CHECK_FALSE(second.find(spec_for(name, alltoall({1, 3}))));
    CHECK(is_same(second.at(0).spec_of(0), spec_for(name, alltoall({0, 4}))));
  }
}

TEST_CASE("a slot that was never filled is an error") {
  ResponseCache cache(3);
  CHECK_THROWS_WITH(cache.at(0), Catch::Contains("this rank") && Catch::Contains("slot 0"));
  cache.put(2, {spec_for("x", spec_with({1})), {}});
  CHECK_THROWS_AS(cache.at(1), Error);
  CHECK_THROWS_AS(cache.at(3), Error);
}
