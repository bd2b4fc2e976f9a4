// SPDX-License-Identifier: Apache-2.0
#include "core/src/run/packing_backend.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <map>

#include "tests/core/run/recorder_backend.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr std::size_t kBuffer = 64;

std::size_t rounded_up(std::size_t numerator, std::size_t divisor) {
  return (numerator + divisor - 1) / divisor;
}

/// Rank 0 of `ranks` with a fusion buffer of `buffer_bytes`, over a backend that takes `slots`
/// operations at once.
struct Packed {
  explicit Packed(std::size_t ranks, std::size_t buffer_bytes = kBuffer, std::size_t slots = 1)
      : record{.most_in_flight = slots},
        backend(std::make_unique<PackingBackend>(std::make_unique<Recorder>(record, ranks),
                                                 static_cast<int>(ranks), 0, buffer_bytes)) {}

  /// So many calls of `dtype` reached the packed backend, none of more than `most_bytes`; returns
  /// the bytes of all.
  std::size_t check_calls(std::size_t calls, DataType dtype, std::size_t most_bytes = kBuffer) {
    CHECK(record.calls.size() == calls);
    std::size_t bytes = 0;
    for (const Recorded& call : record.calls) {
      CHECK(call.dtype == dtype);
      CHECK(call.bytes <= most_bytes);
      bytes += call.bytes;
    }
    return bytes;
  }

  Record record;
  std::unique_ptr<PackingBackend> backend;
};

/// Rank 0 of two, with `slots` of kBuffer bytes.
struct Overlapping : Packed {
  explicit Overlapping(std::size_t slots) : Packed(2, slots * kBuffer, slots) {}
};

/// An allreduce in place of floats, of which 16 are a chunk of kBuffer bytes.
struct Sum {
  explicit Sum(std::size_t count) : values(count) {
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i);
    segment = {values.data(), values.data(), count};
  }

  std::unique_ptr<Operation> start(Packed& packed) {
    return packed.backend->allreduce({.segments = {&segment, 1}});
  }

  std::vector<float> values;
  Segment segment;
};

}  // namespace

TEST_CASE("an allgather of more ranks than the buffer has bytes") {
  // A fusion buffer of 64 bytes, and 200 ranks: it must not be overrun.
  constexpr std::size_t kRanks = 200, kEach = 20;
  Packed packed(kRanks);
  const std::vector<std::byte> input(kEach, std::byte{7});
  std::vector<std::byte> output(kRanks * kEach);
  const std::vector<std::size_t> counts(kRanks, kEach);
  AllgatherCall call{.input = input.data(), .output = output.data(), .counts = counts};
  call.dtype = DataType::U8;
  CHECK(packed.backend->allgather(call)->poll());
  for (std::size_t i = 0; i < output.size(); ++i) {
    const std::size_t rank = i / kEach;
    REQUIRE(output[i] == (rank == 0 ? input[i] : gathered_byte(rank, i % kEach)));
  }
  // The buffer has room for one more element than there are ranks, of the largest type.
  packed.check_calls(3, DataType::U8, 8 * (kRanks + 1));
}

TEST_CASE("chunks of a large buffer are as large as its ranks are many, to stay in the caches") {
  constexpr std::size_t kBytes = std::size_t{5} << 20;
  for (const std::size_t ranks : {1U, 2U, 8U}) {
    CAPTURE(ranks);
    Packed packed(ranks, std::size_t{64} << 20);
    Sum sum(kBytes / sizeof(float));
    CHECK(sum.start(packed)->poll());
    const std::size_t chunk = ranks << 19;
    CHECK(packed.check_calls(rounded_up(kBytes, chunk), DataType::F32, chunk) == kBytes);
  }
}

TEST_CASE("a fusion buffer grows on demand up to its limit, on cache lines") {
  FusionBuffer buffer(1000);
  CHECK(buffer.limit() == 1000);
  CHECK(buffer.capacity() == 0);
  CHECK(buffer.reserve(0) == nullptr);
  std::byte* memory = buffer.reserve(100);
  CHECK(buffer.capacity() == 100);
  CHECK(buffer.reserve(50) == memory);
  CHECK(buffer.reserve(101) != nullptr);
  CHECK(buffer.capacity() == 200);
  memory = buffer.reserve(600);
  CHECK(buffer.capacity() == 600);
  CHECK(reinterpret_cast<std::uintptr_t>(memory) % 64 == 0);
  static_cast<void>(buffer.reserve(700));
  CHECK(buffer.capacity() == 1000);
  buffer.abandon();
  CHECK(buffer.capacity() == 0);
  buffer.abandon();
  CHECK(FusionBuffer(0).limit() == 64);
}

TEST_CASE("a packed backend that can keeps the memory of its calls after a failure, and frees it") {
  Packed packed(2);
  Sum sum(16);
  packed.record.held = {0};
  packed.record.keeps = true;
  auto operation = sum.start(packed);
  CHECK_FALSE(operation->poll());
  packed.backend->abort();
  operation.reset();
  packed.backend.reset();
  REQUIRE(packed.record.kept.use_count() == 1);
  std::memset(packed.record.calls[0].memory, 1, packed.record.calls[0].bytes);  // by a peer
}

TEST_CASE("the next chunks start while the first is in flight, each in memory of its own") {
  Overlapping packed(3);
  CHECK(packed.backend->capabilities().operations_in_flight == 3);
  Sum sum(5 * 16);
  const std::vector<float> before = sum.values;
  const auto operation = sum.start(packed);
  packed.record.held = {0, 1, 2, 3, 4};
  CHECK_FALSE(operation->poll());
  REQUIRE(packed.record.calls.size() == 3);
  std::set<void*> memory;
  for (const Recorded& call : packed.record.calls) {
    CHECK(call.bytes == kBuffer);
    memory.insert(call.memory);
  }
  CHECK(memory.size() == 3);
  // What ends before the first is kept, and its memory with it.
  packed.record.held = {0, 3, 4};
  const std::uint64_t progress = operation->progress();
  CHECK_FALSE(operation->poll());
  CHECK(operation->progress() == progress + 2);
  CHECK(packed.record.calls.size() == 3);
  packed.record.held = {4};
  CHECK_FALSE(operation->poll());
  CHECK(packed.record.calls.size() == 5);
  packed.record.held.clear();
  CHECK(operation->poll());
  CHECK(sum.values == before);
  const StatsGroup stats = packed.backend->stats();
  const std::map<std::string, std::uint64_t> counters(stats.counters.begin(), stats.counters.end());
  CHECK(counters.at("chunks") == 5);
  CHECK(counters.at("fusion_buffer_bytes") == 3 * kBuffer);
  CHECK(counters.at("packed_bytes") == 5 * kBuffer);
  CHECK(counters.at("unpacked_bytes") == 5 * kBuffer);
}

TEST_CASE("a backend that takes many operations gets three chunks, one that takes two gets two") {
  for (const auto& [takes, slots] : {std::pair(1U, 1U), {2U, 2U}, {3U, 3U}, {100U, 3U}}) {
    Overlapping packed(takes);
    CHECK(packed.backend->capabilities().operations_in_flight == slots);
    packed.record.finishes = false;
    Sum sum(16'000);
    CHECK_FALSE(sum.start(packed)->poll());
    CHECK(packed.record.calls.size() == slots);
  }
}

TEST_CASE("an operation starts once the one before has started all, while that one drains") {
  Overlapping packed(3);
  Sum first(4 * 16);
  Sum second(2 * 16);
  const auto before = first.start(packed);
  const auto behind = second.start(packed);
  packed.record.held = {1, 2, 3, 4, 5};
  CHECK_FALSE(behind->poll());
  CHECK(packed.record.calls.empty());
  CHECK_FALSE(before->poll());
  CHECK(packed.record.calls.size() == 4);  // one has ended
  CHECK_FALSE(behind->poll());
  CHECK(packed.record.calls.size() == 4);  // all slots are taken
  packed.record.held = {2, 3, 4, 5};
  CHECK_FALSE(before->poll());
  CHECK_FALSE(behind->poll());
  CHECK(packed.record.calls.size() == 5);
  packed.record.held.clear();
  CHECK(before->poll());
  CHECK(behind->poll());
  CHECK(packed.record.calls.size() == 6);
}

TEST_CASE("chunks in flight at an abort keep their memory, and the user's is not touched") {
  Overlapping packed(3);
  packed.record.finishes = false;
  Sum first(2 * 16);
  Sum second(2 * 16);
  const std::vector<float> before = first.values;
  std::vector<std::unique_ptr<Operation>> operations;
  operations.push_back(first.start(packed));
  operations.push_back(second.start(packed));
  for (const auto& operation : operations) CHECK_FALSE(operation->poll());
  CHECK(packed.record.calls.size() == 3);
  packed.backend->abort();
  CHECK(packed.record.aborted);
  operations.clear();
  packed.backend.reset();
  // Not freed: AddressSanitizer watches.
  for (const Recorded& call : packed.record.calls) std::memset(call.memory, 5, call.bytes);
  CHECK(first.values == before);
  CHECK(second.values == before);
}

TEST_CASE("an operation whose chunk cannot start can be destroyed beside others") {
  Overlapping packed(3);
  packed.record.held = {0, 1};
  packed.record.fails_at = 2;
  Sum first(16);
  Sum second(3 * 16);
  auto before = first.start(packed);
  auto behind = second.start(packed);
  CHECK_FALSE(before->poll());
  CHECK_THROWS_WITH(behind->poll(), "the call fails");
  packed.backend->abort();
  before.reset();
  behind.reset();
  CHECK(packed.record.in_flight == 0);
  packed.backend.reset();
  for (const Recorded& call : packed.record.calls) std::memset(call.memory, 5, call.bytes);
}
