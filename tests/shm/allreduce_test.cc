// SPDX-License-Identifier: Apache-2.0
// Allreduces of every type and op through slot buffers of all kinds and in the symmetric heap,
// compared with numbers reduced in double precision or 64-bit integers; and equal bits on every
// rank.
#include <algorithm>
#include <barrier>

#include "ronde/error.h"
#include "tests/shm/calls.h"
#include "tests/shm/group.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/harness/sanitizers.h"
#include "tests/support/ranks/give_way.h"

namespace ronde::test {
namespace {

RunRanks ranks_of(int ranks, const ShmOptions& options) {
  return [ranks, options](const std::function<void(int rank, const RunAllreduce&)>& body) {
    run_backends(ranks, options, [&](int rank, shm::ShmBackend& backend) {
      body(rank, [&](const AllreduceCall& call) { finish(*backend.allreduce(call)); });
    });
  };
}

using Reduce = ShmOptions::Reduce;
using Stores = ShmOptions::Stores;
constexpr std::pair<const char*, ShmOptions> kVariants[] = {
    {"the usual slot buffer", {}},
    {"a tiny slot buffer", {.slots = 2, .slot_bytes = 128, .reduce = Reduce::OneShot}},
    {"a tiny slot buffer in two shots", {.slots = 2, .slot_bytes = 128, .reduce = Reduce::TwoShot}},
    {"one slot",
     {.slots = 1, .slot_bytes = 192, .reduce = Reduce::OneShot, .stores = Stores::Streaming}},
    {"one slot in two shots", {.slots = 1, .slot_bytes = 192, .reduce = Reduce::TwoShot}},
};

[[maybe_unused]] const bool kRegistered = [] {
  for (const auto& [name, options] : kVariants) {
    const auto on_some_ranks = [options =
                                    options](void (*check)(int ranks, const RunRanks& run_ranks)) {
      for (int ranks = plain_or_sanitized(1, 3); ranks <= 3; ++ranks) {
        check(ranks, ranks_of(ranks, options));
      }
    };
    const std::string buffer = name;
    add_case("every op of every type through " + buffer, "",
             [on_some_ranks] { on_some_ranks(check_every_op); });
    add_case("elements are sent as halves through " + buffer, "", [on_some_ranks] {
      on_some_ranks([](int ranks, const RunRanks& run) { check_wire_dtypes(ranks, 1, run); });
    });
  }
  return true;
}();

TEST_CASE("ranks may add nothing to some of the segments") {
  for (const auto& [name, options] : kVariants) {
    INFO(name);
    check_absent(3, ranks_of(3, options));
  }
}

TEST_CASE("operations larger than the slot buffer") {
  const int ranks = GENERATE(2, 3, 4, 8);
  const Reduce reduce = GENERATE(Reduce::Auto, Reduce::OneShot, Reduce::TwoShot);
  const Stores stores = GENERATE(Stores::Auto, Stores::Streaming);
  CAPTURE(ranks, static_cast<int>(reduce), static_cast<int>(stores));
  const std::vector<std::size_t> tiny(600, 2);
  std::vector<Call> calls;
  for (const bool in_place : {false, true}) {
    for (const auto& counts : std::vector<std::vector<std::size_t>>{
             {12'000}, {1024}, {4097, 1, 8192}, tiny, {1, 3000, 3, 7, 5501}}) {
      calls.push_back({{DataType::F32, ReduceOp::Average, 1.0, 1.0, ranks}, counts, in_place});
      calls.push_back(
          {{DataType::F32, ReduceOp::Average, 0.7, 1.0, ranks, DataType::BF16}, counts, in_place});
    }
  }
  check_calls(
      calls,
      ranks_of(ranks, {.slots = 3, .slot_bytes = 4 << 10, .reduce = reduce, .stores = stores}));
}

TEST_CASE("results are the same bits whatever the slot buffer, and from run to run") {
  for (const DataType dtype : {DataType::F32, DataType::BF16}) {
    const std::vector<Call> calls = {
        {{dtype, ReduceOp::Sum, 0.3, 1.7, 5}, {1000, 1, 0, 333}, false},
        {{dtype, ReduceOp::Average, 1.0, 1.0, 5}, {4097}, true},
        {{DataType::F64, ReduceOp::Sum, 0.3, 1.7, 5,
          dtype == DataType::F32 ? DataType::F16 : dtype},
         {4097, 3},
         false}};
    const auto first = results_of(calls, ranks_of(5, {}));
    for (const auto& [name, options] : kVariants) {
      INFO(name);
      CHECK(results_of(calls, ranks_of(5, options)) == first);
    }
  }
}

/// Copies the inputs into the symmetric heap, with gaps, and returns the segments there.
std::vector<Segment> moved_in(const SymmetricHeap& heap, const AllreduceCall& call) {
  std::vector<Segment> segments;
  std::size_t begin = 4160;
  for (const Segment& segment : call.segments) {
    const std::size_t bytes = segment.count * size_of(call.dtype);
    std::byte* const at = heap.own(begin);
    std::copy_n(static_cast<const std::byte*>(segment.input), bytes, at);
    segments.push_back({at, at, segment.count});
    begin += (bytes / SymmetricHeap::kAlignment + 1) * SymmetricHeap::kAlignment;
  }
  return segments;
}

/// Runs ranks that make every call in the symmetric heap. Those in `late` start when the others
/// have done all the work.
RunRanks symmetric_ranks(int ranks, const std::vector<int>& late = {}) {
  return [ranks, late](const auto& body) {
    std::barrier all(ranks);
    run_backends(ranks, {}, [&](int rank, shm::ShmBackend& backend) {
      const bool is_late = std::find(late.begin(), late.end(), rank) != late.end();
      body(rank, [&](const AllreduceCall& call) {
        const auto segments = moved_in(*backend.symmetric_heap(), call);
        AllreduceCall symmetric = call;
        symmetric.segments = segments;
        symmetric.symmetric = true;
        all.arrive_and_wait();
        if (is_late) all.arrive_and_wait();
        finish(*backend.allreduce(symmetric));
        if (!is_late) all.arrive_and_wait();
        for (std::size_t i = 0; i < segments.size(); ++i) {
          std::copy_n(static_cast<const std::byte*>(segments[i].output),
                      segments[i].count * size_of(call.dtype),
                      static_cast<std::byte*>(call.segments[i].output));
        }
      });
    });
  };
}

[[maybe_unused]] const bool kSymmetricRegistered = [] {
  for (int ranks = plain_or_sanitized(1, 3); ranks <= 3; ++ranks) {
    add_case("every op of every type in the symmetric heap of " + std::to_string(ranks), "",
             [ranks] { check_every_op(ranks, symmetric_ranks(ranks)); });
  }
  return true;
}();

TEST_CASE("as many ranks as a host may have reduce, also in the symmetric heap") {
  const int ranks = GENERATE(33, 64);
  CAPTURE(ranks);
  for (const Reduce reduce : {Reduce::Auto, Reduce::OneShot}) {
    check_calls({{{DataType::F32, ReduceOp::Average, 1.0, 1.0, ranks}, {4000, 1, 30}, true},
                 {{DataType::I32, ReduceOp::Max, 1.0, 1.0, ranks}, {33}, false}},
                ranks_of(ranks, {.slots = 2, .slot_bytes = 4 << 10, .reduce = reduce}));
  }
  check_calls({{{DataType::F32, ReduceOp::Average, 1.0, 1.0, ranks}, {40'000, 1, 30}, true}},
              symmetric_ranks(ranks, {5}));
}

TEST_CASE("ranks that compute elsewhere are reduced for") {
  for (const int ranks : {2, 3, 4}) {
    std::vector<Call> calls;
    // Several chunks, cut in the middle of segments.
    for (const auto& counts : std::vector<std::vector<std::size_t>>{
             {100'000}, {3, 70'001, 0, 9}, {33'000, 33'000, 33'000}}) {
      calls.push_back({{DataType::F32, ReduceOp::Average, 1.0, 1.0, ranks}, counts, true});
    }
    CAPTURE(ranks);
    check_calls(calls, symmetric_ranks(ranks, {ranks - 1}));
    check_calls(calls, symmetric_ranks(ranks, {0}));
  }
}

/// Zeroed memory for the claims of so many ranks.
class ClaimsMemory {
 public:
  explicit ClaimsMemory(std::size_t ranks)
      : lines_(shm::ChunkClaims::bytes_for(ranks) / sizeof(Line)) {}
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(lines_)); }

 private:
  struct alignas(shm::kLinePair) Line {
    std::byte bytes[shm::kLinePair] = {};
  };
  std::vector<Line> lines_;
};

TEST_CASE("a chunk goes to one rank, and an operation is finished when all its chunks are") {
  ClaimsMemory memory(2);
  shm::ChunkClaims one(memory.bytes(), 0, 2);
  shm::ChunkClaims other(memory.bytes(), 1, 2);
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
      shm::ChunkClaims claims(memory.bytes(), rank, kRanks);
      for (std::uint64_t operation = 0; operation < kOperations; ++operation) {
        const std::uint64_t end = (operation + 1) * kChunks;
        while (const auto chunk = claims.claim(end)) {
          ++chunks[*chunk];
          claims.finish();
        }
        while (!claims.finished(end)) give_way();
        for (std::uint64_t i = operation * kChunks; i < end; ++i) wrong[rank] += chunks[i] != 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(kRanks, 0));
}

}  // namespace
}  // namespace ronde::test
