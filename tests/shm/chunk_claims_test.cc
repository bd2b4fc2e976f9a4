// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/operations/chunk_claims.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

namespace ronde::shm {
namespace {

/// Zeroed memory for the claims of so many ranks.
class ClaimsMemory {
 public:
  explicit ClaimsMemory(std::size_t ranks) : lines_(ChunkClaims::bytes_for(ranks) / sizeof(Line)) {}
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(lines_)); }

 private:
  struct alignas(ChunkClaims::kLinePair) Line {
    std::byte bytes[ChunkClaims::kLinePair] = {};
  };
  std::vector<Line> lines_;
};

TEST_CASE("a chunk goes to one rank, and an operation is finished when all its chunks are") {
  ClaimsMemory memory(2);
  ChunkClaims one(memory.bytes(), 0, 2);
  ChunkClaims other(memory.bytes(), 1, 2);
  CHECK(one.finished(0));
  CHECK(one.claim(2) == 0U);
  CHECK(other.claim(2) == 1U);
  CHECK_FALSE(one.finished(1));
  one.finish();
  CHECK(one.finished(1));  // the other works on chunk 1
  CHECK_FALSE(one.finished(2));
  CHECK_FALSE(one.claim(2));
  other.finish();
  CHECK(one.finished(2));
  CHECK(other.finished(2));
  // The next operation is begun by one while the other has not seen the end of this one.
  CHECK(one.claim(5) == 2U);
  CHECK(other.finished(2));
  CHECK_FALSE(other.finished(3));
}

TEST_CASE("what was done to a chunk is seen by whoever sees the end of its operation") {
  constexpr std::size_t kRanks = 4;
  constexpr std::uint64_t kOperations = 200;
  constexpr std::uint64_t kChunks = 7;
  ClaimsMemory memory(kRanks);
  // Plain numbers: ThreadSanitizer checks that claims order the accesses.
  std::vector<int> chunks(kOperations * kChunks, 0);
  std::vector<int> wrong(kRanks, 0);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      ChunkClaims claims(memory.bytes(), rank, kRanks);
      for (std::uint64_t operation = 0; operation < kOperations; ++operation) {
        const std::uint64_t end = (operation + 1) * kChunks;
        while (const auto chunk = claims.claim(end)) {
          ++chunks[*chunk];
          claims.finish();
        }
        while (!claims.finished(end)) std::this_thread::yield();
        for (std::uint64_t i = operation * kChunks; i < end; ++i) wrong[rank] += chunks[i] != 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(kRanks, 0));
}

}  // namespace
}  // namespace ronde::shm
