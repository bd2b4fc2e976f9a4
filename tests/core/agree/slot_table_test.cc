// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/response_cache.h"

#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "ronde/error.h"

namespace {

using namespace ronde;
using Ready = std::vector<std::pair<std::size_t, bool>>;

const SlotTable::TimePoint kStart{std::chrono::hours(1)};
const SlotTable::TimePoint kLater = kStart + std::chrono::seconds(1);

Ready ready_for(const SlotTable& table, std::uint32_t slot) {
  Ready ready;
  table.for_each_ready(
      slot, [&](std::size_t sender, bool contributes) { ready.emplace_back(sender, contributes); });
  return ready;
}

}  // namespace

TEST_CASE("a slot is complete once all ranks are ready, by themselves or with their host") {
  SlotTable table(4);
  const std::size_t host = table.add_sender(2);
  CHECK(host == 4);
  table.add(1, 70, true, kLater);
  table.add(0, 3, false, kStart);
  table.add(1, 3, false, kLater);
  CHECK_FALSE(table.take_complete());
  CHECK(table.since(3) == kStart);
  CHECK((ready_for(table, 3) == Ready{{0, false}, {1, false}}));
  table.add(host, 3, false, kLater);
  const auto complete = table.take_complete();
  REQUIRE(complete);
  CHECK(complete->slots.count() == 1);
  CHECK(complete->slots.test(3));
  CHECK(complete->skipped.test(3));
  CHECK(table.is_awaited(70));
  CHECK_FALSE(table.is_awaited(3));
  CHECK_FALSE(table.take_complete());

  // In the next round somebody contributes.
  for (std::size_t rank = 0; rank < 4; ++rank) table.add(rank, 3, rank == 2, kLater);
  CHECK_FALSE(table.take_complete()->skipped.test(3));
}

TEST_CASE("what is withdrawn or assigned anew is awaited no more, complete or not") {
  SlotTable table(2);
  table.assign(0, "x", 1);
  table.assign(1, "y", 1);
  for (const std::uint32_t slot : {0U, 1U}) table.add(0, slot, true, kStart);
  table.add(1, 0, true, kStart);
  table.withdraw(0);
  table.assign(1, "z", 2);
  CHECK(table.idle());
  CHECK_FALSE(table.take_complete());
  CHECK(table.find("x") == 0U);
  CHECK_FALSE(table.find("y"));
  CHECK(table.find("z") == 1U);
  CHECK(table.name_of(1) == "z");
  CHECK(table.name_of(9).empty());
  CHECK(table.assigned(1) == 2);
  CHECK(table.assigned(9) == 0);
}

TEST_CASE("a slot that a rank announces twice is refused") {
  SlotTable table(3);
  const std::size_t host = table.add_sender(2);
  table.add(0, 5, true, kStart);
  CHECK_THROWS_AS(table.add(0, 5, true, kStart), Error);
  table.add(1, 5, true, kStart);
  CHECK_THROWS_AS(table.add(host, 5, true, kStart), Error);
}
