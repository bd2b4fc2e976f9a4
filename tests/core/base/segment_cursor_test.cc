// SPDX-License-Identifier: Apache-2.0
#include "ronde/plugin/segment_cursor.h"

#include <catch2/catch.hpp>

namespace {

using namespace ronde;

TEST_CASE("a cursor tells how far some pieces reach") {
  std::vector<Segment> segments;
  for (const std::size_t count : {0, 3, 0, 5, 1, 0, 2}) segments.push_back({.count = count});
  SegmentCursor cursor(segments);
  const auto walk = [&](std::size_t elements) { cursor.advance(elements, [](const auto&...) {}); };
  CHECK(cursor.reach(100, 0) == 0);
  CHECK(cursor.reach(100, 1) == 3);
  CHECK(cursor.reach(2, 1) == 2);
  CHECK(cursor.reach(100, 3) == 9);
  CHECK(cursor.reach(100, 100) == 11);
  walk(4);
  CHECK(cursor.reach(100, 1) == 4);
  CHECK(cursor.reach(100, 2) == 5);
  CHECK(cursor.reach(100, 3) == 7);
  CHECK(cursor.reach(6, 3) == 6);
  walk(7);
  CHECK(cursor.reach(100, 3) == 0);
}

}  // namespace
