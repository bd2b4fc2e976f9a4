// SPDX-License-Identifier: Apache-2.0
#include "core/src/op/rows.h"

#include <catch2/catch.hpp>
#include <limits>

namespace {

using namespace ronde;
using Rows = std::vector<std::int64_t>;

std::string error_of(const Rows& splits, std::int64_t rows, int size) {
  OpSpec spec;
  spec.kind = Collective::Alltoall;
  spec.shape = {rows, 2};
  spec.splits = splits;
  return splits_error(spec, size).value_or("");
}

}  // namespace

TEST_CASE("the first ranks of a reducescatter get the rows that are left over") {
  CHECK(scattered_rows(7, 3) == Rows{3, 2, 2});
  CHECK(scattered_rows(8, 3) == Rows{3, 3, 2});
  CHECK(scattered_rows(9, 3) == Rows{3, 3, 3});
  CHECK(scattered_rows(2, 4) == Rows{1, 1, 0, 0});
  CHECK(scattered_rows(0, 2) == Rows{0, 0});
  CHECK(scattered_rows(5, 1) == Rows{5});
}

TEST_CASE("splits must be one for each rank, not negative, and add up") {
  CHECK(error_of({}, 6, 3).empty());
  CHECK(error_of({1, 2, 3}, 6, 3).empty());
  CHECK(error_of({0, 0, 6}, 6, 3).empty());
  CHECK(error_of({0, 0}, 0, 2).empty());
  CHECK_THAT(error_of({}, 7, 3), Catch::Contains("cannot be divided evenly among 3 ranks"));
  CHECK_THAT(error_of({6}, 6, 3), Catch::Contains("1 splits were given for 3 ranks"));
  CHECK_THAT(error_of({7, -1, 0}, 6, 3), Catch::Contains("[7, -1, 0] have a negative number"));
  CHECK_THAT(error_of({1, 2, 4}, 6, 3), Catch::Contains("do not add up"));
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK_THAT(error_of({kMost, kMost, 8}, 6, 3), Catch::Contains("do not add up"));
}

TEST_CASE("ranks compare neither splits that are right nor their rows, and wrong ones as given") {
  const auto left_of = [](const Rows& shape, const Rows& splits) {
    OpSpec spec;
    spec.kind = Collective::Alltoall;
    spec.shape = shape;
    spec.splits = splits;
    leave_out_rows(spec, 2);
    return spec;
  };
  CHECK(left_of({5, 2}, {2, 3}) == left_of({7, 2}, {7, 0}));
  CHECK_FALSE(left_of({5, 2}, {2, 3}) == left_of({5, 3}, {2, 3}));
  CHECK_FALSE(left_of({4, 2}, {2, 2}) == left_of({4, 2}, {}));
  CHECK_FALSE(left_of({0, 2}, {0, 0}) == left_of({0, 2}, {}));
  CHECK(to_string(left_of({5, 2}, {2, 3})) == "alltoall f32 [*, 2] with splits on cpu");
  struct Wrong {
    Rows shape, splits;
  };
  const Wrong kinds[] = {{{5, 2}, {2, 2}}, {{5, 2}, {5}}, {{-5, 2}, {2, 3}}, {{}, {2, 3}}};
  for (const auto& [shape, splits] : kinds) {
    const OpSpec spec = left_of(shape, splits);
    CHECK(spec.shape == shape);
    CHECK(spec.splits == splits);
    CHECK_FALSE(spec.has_splits);
  }
}

TEST_CASE("rows are known unless a rank gave splits") {
  CHECK_FALSE(RankRows{}.has_splits());
  CHECK_FALSE(RankRows{{6, 9, 0}}.has_splits());
  CHECK(RankRows{{6, kHasSplits, 0}}.has_splits());
}

TEST_CASE("a sum of rows that is too large is the largest number") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK(total_rows({}) == 0);
  CHECK(total_rows({1, 2, 3}) == 6);
  CHECK(total_rows({kMost, 0}) == kMost);
  CHECK(total_rows({kMost - 1, 2}) == kMost);
}
