// SPDX-License-Identifier: Apache-2.0
#include "ronde/symmetric_heap.h"

#include <catch2/catch.hpp>

#include "ronde/error.h"

namespace ronde {
namespace {

constexpr std::size_t kPart = 1024;

struct TwoRanks {
  std::vector<std::byte> memory = std::vector<std::byte>(2 * kPart);
  SymmetricHeap heap{{{memory.data(), kPart}, {memory.data() + kPart, kPart}}, 1, nullptr};
};

TEST_CASE("the symmetric heap finds the lowest free place, also from some place on") {
  TwoRanks two;
  SymmetricHeap& heap = two.heap;
  CHECK(heap.find(kPart) == 0U);
  CHECK_FALSE(heap.find(kPart + 1));
  REQUIRE(heap.reserve(0, 100));
  CHECK(heap.find(1) == 128U);  // lines are not shared
  REQUIRE(heap.reserve(256, 64));
  CHECK(heap.find(128) == 128U);
  CHECK(heap.find(129) == 320U);
  CHECK(heap.find(64, 129) == 192U);
  CHECK(heap.find(0, 320) == 320U);
  CHECK(heap.find(0) == 128U);  // a block without bytes has a place of its own, too
  CHECK_FALSE(heap.find(1, kPart));
  CHECK_FALSE(heap.find(1, 2 * kPart));
  CHECK(heap.reserved_bytes() == 164);
}

TEST_CASE("the symmetric heap gives nothing away twice") {
  TwoRanks two;
  SymmetricHeap& heap = two.heap;
  REQUIRE(heap.reserve(128, 128));
  for (const auto& [offset, bytes] : std::vector<std::pair<std::size_t, std::size_t>>{
           {128, 1}, {192, 64}, {64, 65}, {0, kPart}, {64, kPart}, {1, 1}, {kPart, 1}, {0, 129}}) {
    CAPTURE(offset, bytes);
    CHECK_FALSE(heap.reserve(offset, bytes));
  }
  CHECK(heap.reserve(0, 128));
  CHECK(heap.reserve(256, kPart - 256));
  heap.release(128);
  CHECK(heap.reserve(128, 128));
  CHECK_THROWS_AS(heap.release(64), Error);
}

TEST_CASE("the symmetric heap knows what lies in this rank's part") {
  const TwoRanks two;
  const std::byte* const own = two.memory.data() + kPart;
  CHECK(two.heap.offset_of(own, kPart) == 0U);
  CHECK(two.heap.offset_of(own + 64, kPart - 64) == 64U);
  CHECK_FALSE(two.heap.offset_of(own + 64, kPart));
  CHECK_FALSE(two.heap.offset_of(own - 1, 1));
  CHECK_FALSE(two.heap.offset_of(two.memory.data(), 1));
  CHECK_FALSE(two.heap.offset_of(nullptr, 0));
  CHECK(two.heap.at(0, 64) == two.memory.data() + 64);
  CHECK(two.heap.own(64) == own + 64);
  std::vector<std::byte> memory(3);
  CHECK_THROWS_AS(SymmetricHeap({{memory.data(), 2}, {memory.data() + 2, 1}}, 0, nullptr), Error);
  CHECK_THROWS_AS(SymmetricHeap({{memory.data(), 3}}, 1, nullptr), Error);
}

}  // namespace
}  // namespace ronde
