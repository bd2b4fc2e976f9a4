// SPDX-License-Identifier: Apache-2.0
#include "ronde/plugin/segment_cursor.h"

#include <catch2/catch.hpp>

namespace {

using namespace ronde;

/// Segments of these sizes, told apart by their input addresses.
std::vector<Segment> segments_of(const std::vector<std::size_t>& counts) {
  static const char addresses[16] = {};
  std::vector<Segment> segments;
  for (const std::size_t count : counts) {
    segments.push_back({&addresses[segments.size()], nullptr, count});
  }
  return segments;
}

/// "segment+offset*count" of every piece of the next `elements`.
std::string walk(SegmentCursor& cursor, const std::vector<Segment>& segments,
                 std::size_t elements) {
  std::string pieces;
  cursor.advance(elements, [&](const Segment& segment, std::size_t offset, std::size_t count) {
    pieces += std::to_string(&segment - segments.data()) + "+" + std::to_string(offset) + "*" +
              std::to_string(count) + " ";
  });
  return pieces;
}

TEST_CASE("a cursor cuts pieces where segments or chunks end, and skips empty segments") {
  const auto segments = segments_of({0, 3, 0, 0, 5, 1, 0});
  SegmentCursor cursor(segments);
  CHECK(walk(cursor, segments, 0).empty());
  CHECK(walk(cursor, segments, 2) == "1+0*2 ");
  CHECK(walk(cursor, segments, 4) == "1+2*1 4+0*3 ");
  CHECK(walk(cursor, segments, 3) == "4+3*2 5+0*1 ");
  CHECK(total_elements(segments) == 9);
}

TEST_CASE("a cursor tells how far some pieces reach") {
  const auto segments = segments_of({0, 3, 0, 5, 1, 0, 2});
  SegmentCursor cursor(segments);
  CHECK(cursor.reach(100, 0) == 0);
  CHECK(cursor.reach(100, 1) == 3);
  CHECK(cursor.reach(2, 1) == 2);
  CHECK(cursor.reach(100, 3) == 9);
  CHECK(cursor.reach(100, 100) == 11);
  walk(cursor, segments, 4);
  CHECK(cursor.reach(100, 1) == 4);
  CHECK(cursor.reach(100, 2) == 5);
  CHECK(cursor.reach(100, 3) == 7);
  CHECK(cursor.reach(6, 3) == 6);
  walk(cursor, segments, 7);
  CHECK(cursor.reach(100, 3) == 0);
}

}  // namespace
