// SPDX-License-Identifier: Apache-2.0
#include "core/src/events/event_log.h"

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

namespace {

using namespace ronde;

EventRecord numbered(std::uint64_t number) {
  return {.time_ns = static_cast<std::int64_t>(number),
          .kind = EventKind::Started,
          .set = static_cast<std::uint32_t>(number),
          .operation = number,
          .bucket = number,
          .bytes = number,
          .uncompressed_bytes = number};
}

/// All parts of an event were written together.
void check_whole(const Event& event) {
  const std::uint64_t number = event.operation;
  const bool whole = event.bucket == number && event.bytes == number &&
                     event.uncompressed_bytes == number &&
                     event.time_ns == static_cast<std::int64_t>(number) &&
                     event.set == static_cast<std::uint32_t>(number) &&
                     event.text == "event " + std::to_string(number);
  if (!whole) FAIL("an event is torn: number " << number << ", text " << event.text);
}

}  // namespace

TEST_CASE("events are read as they were written") {
  EventRing ring(5);
  CHECK(ring.capacity() == 8);
  EventRing::Cursor cursor;
  CHECK_FALSE(ring.read(cursor));
  ring.write({.time_ns = -3,
              .kind = EventKind::Agreed,
              .collective = Collective::Alltoall,
              .set = 0xffffffff,
              .rank = -1,
              .operation = 7,
              .bucket = kMessageBucket + 1,
              .bytes = ~std::uint64_t{0}},
             "layer.weight", 65535);
  REQUIRE(ring.read(cursor));
  CHECK(cursor.event.time_ns == -3);
  CHECK(cursor.event.kind == EventKind::Agreed);
  CHECK(cursor.event.collective == Collective::Alltoall);
  CHECK(cursor.event.set == 0xffffffff);
  CHECK(cursor.event.rank == -1);
  CHECK(cursor.event.operation == 7);
  CHECK(cursor.event.bucket == kMessageBucket + 1);
  CHECK(cursor.event.bytes == ~std::uint64_t{0});
  CHECK(cursor.event.thread == 65535);
  CHECK(cursor.event.text == "layer.weight");
  CHECK_FALSE(ring.read(cursor));
}

TEST_CASE("the end of a long text is kept") {
  EventRing ring(4);
  EventRing::Cursor cursor;
  const std::string exact(kEventText, 'x');
  ring.write({}, exact, 0);
  ring.write({}, "model.layer1.0.conv1." + exact, 0);
  ring.write({},
             std::string_view("\0"
                              "12",
                              3),
             0);
  REQUIRE(ring.read(cursor));
  CHECK(cursor.event.text == exact);
  REQUIRE(ring.read(cursor));
  CHECK(cursor.event.text == "..." + exact.substr(3));
  REQUIRE(ring.read(cursor));
  CHECK(cursor.event.text == "#12");
}

TEST_CASE("what was written with an event follows it") {
  EventRing ring(4);
  ring.write({.time_ns = 5, .then = ThenAlso::AnnouncedAndWaitBegun, .operation = 3}, "x", 1);
  ring.write(
      {.time_ns = 6, .kind = EventKind::Finished, .then = ThenAlso::Completed, .operation = 3}, {},
      2);
  EventRing::Cursor cursor;
  std::vector<EventKind> kinds;
  while (ring.read(cursor)) {
    kinds.push_back(cursor.event.kind);
    CHECK(cursor.event.operation == 3);
  }
  CHECK(kinds == std::vector{EventKind::Submitted, EventKind::Announced, EventKind::WaitBegun,
                             EventKind::Finished, EventKind::Completed});
}

TEST_CASE("a reader that comes late knows how much it has lost") {
  EventRing ring(8);
  for (std::uint64_t i = 0; i < 20; ++i) ring.write(numbered(i), {}, 0);
  EventRing::Cursor cursor;
  std::vector<std::uint64_t> seen;
  while (ring.read(cursor)) seen.push_back(cursor.event.operation);
  CHECK(seen == std::vector<std::uint64_t>{12, 13, 14, 15, 16, 17, 18, 19});
  CHECK(cursor.lost == 12);
  CHECK(ring.written() == 20);
}

TEST_CASE("events of many threads are whole, and every one is read, lost or dropped") {
  constexpr std::uint64_t kWriters = 3, kEach = 20'000;
  EventRing ring(256);
  std::vector<std::thread> writers;
  for (std::uint64_t writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&ring, writer] {
      for (std::uint64_t i = 0; i < kEach; ++i) {
        const std::uint64_t number = writer * kEach + i;
        ring.write(numbered(number), "event " + std::to_string(number), 0);
      }
    });
  }
  EventRing::Cursor cursor;
  std::uint64_t read = 0;
  const auto read_all = [&] {
    while (ring.read(cursor)) {
      check_whole(cursor.event);
      ++read;
    }
  };
  while (ring.written() < kWriters * kEach) read_all();
  for (std::thread& writer : writers) writer.join();
  read_all();
  CHECK(read > 0);
  // A dropped event may be found missing only by later ones.
  CHECK(read + cursor.lost + ring.dropped() >= kWriters * kEach);
  CHECK(read + cursor.lost <= kWriters * kEach);
}
