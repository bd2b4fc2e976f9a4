// SPDX-License-Identifier: Apache-2.0
// Allreduce of every type and op through slot buffers of all kinds, against numbers reduced in
// double precision or 64-bit integers; and the same bits on every rank. The symmetric heap, too.
#include <algorithm>
#include <barrier>
#include <string>
#include <vector>

#include "ronde/error.h"
#include "tests/shm/calls.h"
#include "tests/shm/group.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/harness/sanitizers.h"

namespace ronde::test {
namespace {

RunRanks ranks_of(int ranks, const ShmOptions& options) {
  return [ranks, options](const std::function<void(int rank, const RunAllreduce&)>& body) {
    run_backends(ranks, options, [&](int rank, shm::ShmBackend& backend) {
      body(rank, [&](const AllreduceCall& call) { finish(*backend.allreduce(call)); });
    });
  };
}

struct Variant {
  const char* name;
  ShmOptions options;
};

using Reduce = ShmOptions::Reduce;
using Stores = ShmOptions::Stores;
constexpr Variant kVariants[] = {
    {"the usual slot buffer", {}},
    {"a tiny slot buffer", {.slots = 2, .slot_bytes = 128, .reduce = Reduce::OneShot}},
    {"a tiny slot buffer in two shots", {.slots = 2, .slot_bytes = 128, .reduce = Reduce::TwoShot}},
    {"one slot",
     {.slots = 1, .slot_bytes = 192, .reduce = Reduce::OneShot, .stores = Stores::Streaming}},
    {"one slot in two shots", {.slots = 1, .slot_bytes = 192, .reduce = Reduce::TwoShot}},
};

[[maybe_unused]] const bool kRegistered = [] {
  for (const Variant& variant : kVariants) {
    const auto on_some_ranks = [&variant](void (*check)(int ranks, const RunRanks& run_ranks)) {
      for (int ranks = plain_or_sanitized(1, 3); ranks <= 3; ++ranks) {
        check(ranks, ranks_of(ranks, variant.options));
      }
    };
    const std::string buffer = variant.name;
    add_case("every op of every type through " + buffer, "",
             [on_some_ranks] { on_some_ranks(check_every_op); });
    add_case("elements are sent as halves through " + buffer, "", [on_some_ranks] {
      on_some_ranks([](int ranks, const RunRanks& run) { check_wire_dtypes(ranks, 1, run); });
    });
  }
  return true;
}();

TEST_CASE("ranks may add nothing to some of the segments") {
  for (const Variant& variant : kVariants) {
    CAPTURE(variant.name);
    check_absent(3, ranks_of(3, variant.options));
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

TEST_CASE("as many ranks as a host may have reduce") {
  const int ranks = GENERATE(33, 64);
  const Reduce reduce = GENERATE(Reduce::Auto, Reduce::OneShot);
  CAPTURE(ranks);
  check_calls({{{DataType::F32, ReduceOp::Average, 1.0, 1.0, ranks}, {4000, 1, 30}, true},
               {{DataType::I32, ReduceOp::Max, 1.0, 1.0, ranks}, {33}, false}},
              ranks_of(ranks, {.slots = 2, .slot_bytes = 4 << 10, .reduce = reduce}));
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
    for (const Variant& variant : kVariants) {
      CAPTURE(variant.name);
      CHECK(results_of(calls, ranks_of(5, variant.options)) == first);
    }
  }
}

/// The segments one behind the other in the symmetric heap, with gaps, and the inputs in them.
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

/// Ranks that run every call in the symmetric heap. The others have done all the work before those
/// in `late` come.
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

TEST_CASE("as many ranks as a host may have reduce in the symmetric heap") {
  for (const int ranks : {33, 64}) {
    check_calls({{{DataType::F32, ReduceOp::Average, 1.0, 1.0, ranks}, {40'000, 1, 30}, true}},
                symmetric_ranks(ranks, {5}));
  }
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

TEST_CASE("symmetric operations count who did what, and refuse other memory") {
  std::vector<float> elsewhere(10);
  run_backends(1, {}, [&](int, shm::ShmBackend& backend) {
    const Segment outside{elsewhere.data(), elsewhere.data(), elsewhere.size()};
    text_of<Error>([&] { backend.allreduce({.segments = {&outside, 1}, .symmetric = true}); });
    void* const inside = backend.symmetric_heap()->own(0);
    const Segment segment{inside, inside, kHeapBytes / sizeof(float)};
    finish(*backend.allreduce({.segments = {&segment, 1}, .symmetric = true}));
    check(counter_of(backend, "symmetric_operations") == 1, "one operation");
    check(counter_of(backend, "symmetric_bytes") == kHeapBytes, "of the whole heap");
    check(counter_of(backend, "symmetric_chunks_here") == 8, "in 8 chunks, all done here");
    const auto counters = backend.stats().counters;
    check(std::count_if(counters.begin(), counters.end(),
                        [](const auto& each) { return each.first.starts_with("symmetric"); }) == 6,
          "all are told");
  });
}

}  // namespace
}  // namespace ronde::test
