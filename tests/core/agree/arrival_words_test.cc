// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/arrival_words.h"

#include <catch2/catch.hpp>

#include "tests/core/agree/plain_board.h"
#include "tests/support/ranks/ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Raised = ArrivalWords::Raised;

}  // namespace

TEST_CASE("the last rank to raise a bucket commits it, step after step") {
  PlainBoard board(3);
  ArrivalWords words(board, 0, 3);
  CHECK(words.capacity() == 2);
  for (std::uint32_t step = 1; step < 4; ++step) {
    CHECK(words.committed(7, 1) == step - 1);
    CHECK(words.raise(7, 1, step) == Raised::Waiting);
    CHECK(words.raise(7, 1, step) == Raised::Waiting);
    CHECK(words.committed(7, 1) == step - 1);
    CHECK(words.raise(7, 1, step) == Raised::Committed);
  }
  CHECK(words.committed(7, 1) == 3);
  CHECK(words.committed(7, 0) == 0);
}

TEST_CASE("digests of a step are compared until the step after next") {
  PlainBoard board(3);
  ArrivalWords words(board, 0, 2);
  const std::uint64_t a = 1ULL << 60;
  const std::uint64_t b = 1ULL << 61;
  for (std::uint32_t step = 1; step < 8; ++step) {
    const bool differ = step % 3 == 0;
    words.raise(5, 1, step, a);
    CHECK(words.raise(5, 1, step, differ ? b : a) == Raised::Committed);
    CHECK(words.digests_differ(5, 1, step) == differ);
    words.raise(5, 1, step + 1, a);  // by a rank that is ahead, while the other looks at this step
    CHECK(words.digests_differ(5, 1, step) == differ);
    board.words()[2].value = std::uint64_t{5} << 32 | std::uint64_t{step} << 8 | 2;
    CHECK_FALSE(words.digests_differ(5, 0, step));
    CHECK_FALSE(words.digests_differ(6, 1, step));
  }
  // A rank without a digest, and one whose generation is new.
  words.raise(6, 1, 1, b);
  words.raise(6, 1, 1);
  CHECK_FALSE(words.digests_differ(6, 1, 1));
}

TEST_CASE(
    "closing keeps what was committed, withdraws the rest, and a new generation starts afresh") {
  PlainBoard board(4);
  ArrivalWords words(board, 0, 2);
  for (const std::size_t bucket : {0U, 1U}) {
    words.raise(1, bucket, 1);
    words.raise(1, bucket, 1);
  }
  words.raise(1, 1, 2);
  CHECK_FALSE(words.closed(1));
  words.close(1, 3, 5);
  words.close(1, 3, 6);
  CHECK(words.closed(1).value() == 5);
  CHECK_FALSE(words.closed(2));
  for (const std::size_t bucket : {0U, 1U, 2U}) {
    CHECK(words.raise(1, bucket, 2) == Raised::Closed);
    CHECK(words.committed(1, bucket) == (bucket < 2 ? 1 : 0));
  }
  CHECK(words.committed(2, 0) == 0);
  CHECK(words.raise(2, 0, 1) == Raised::Waiting);
  CHECK(words.raise(2, 0, 1) == Raised::Committed);
  CHECK(words.committed(2, 0) == 1);
  // 24 bits count the steps; the ranks then begin again by negotiation.
  CHECK(words.raise(2, 0, 0xffffff) == Raised::Closed);
}

TEST_CASE("a board without a word for a bucket is refused") {
  PlainBoard small(1);
  CHECK_THROWS_AS(ArrivalWords(small, 0, 2), Error);
}

TEST_CASE("ranks that raise while one closes agree on what was committed") {
  constexpr int kRanks = 4;
  constexpr std::size_t kBuckets = 3;
  for (std::uint32_t generation = 1; generation <= 40; ++generation) {
    PlainBoard board(kBuckets + 1);
    std::vector<std::vector<std::uint32_t>> seen(kRanks);
    run_ranks(kRanks, [&](int rank) {
      ArrivalWords words(board, 0, kRanks);
      for (std::uint32_t step = 1; step < 50; ++step) {
        if (rank == 0 && step == 1 + generation % 7) words.close(generation, kBuckets, 0);
        bool goes_on = true;
        for (std::size_t bucket = 0; bucket < kBuckets && goes_on; ++bucket) {
          goes_on = words.raise(generation, bucket, step) != Raised::Closed;
          while (goes_on && words.committed(generation, bucket) < step) {
            std::this_thread::yield();
            goes_on = !words.closed(generation);
          }
        }
        if (!goes_on) break;
      }
      words.close(generation, kBuckets, 0);
      for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
        seen[static_cast<std::size_t>(rank)].push_back(words.committed(generation, bucket));
      }
    });
    for (const auto& of_rank : seen) REQUIRE(of_rank == seen[0]);
  }
}
