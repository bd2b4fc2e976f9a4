// SPDX-License-Identifier: Apache-2.0
// Allreduce of every type and op through rings of all kinds, against numbers reduced in double
// precision or 64-bit integers; and the same bits on every rank.
#include <algorithm>
#include <barrier>
#include <string>
#include <vector>

#include "calls.h"
#include "case_table.h"
#include "group.h"
#include "ronde/error.h"
#include "ronde/segment_cursor.h"

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
  std::string name;
  ShmOptions options;
};

ShmOptions with(ShmOptions options, ShmOptions::Reduce reduce,
                ShmOptions::Stores stores = ShmOptions::Stores::Auto) {
  options.reduce = reduce;
  options.stores = stores;
  return options;
}

const std::vector<Variant>& variants() {
  using Reduce = ShmOptions::Reduce;
  using Stores = ShmOptions::Stores;
  static const std::vector<Variant> all = {
      {"the usual ring", {}},
      {"a tiny ring", with(tiny_ring(), Reduce::Flat)},
      {"a tiny ring by slices", with(tiny_ring(), Reduce::Sliced)},
      {"one slot", with({.slots = 1, .slot_bytes = 192}, Reduce::Flat, Stores::Streaming)},
      {"one slot by slices", with({.slots = 1, .slot_bytes = 192}, Reduce::Sliced)},
  };
  return all;
}

[[maybe_unused]] const bool kTypesRegistered = [] {
  for (const DataType dtype : kAllDataTypes) {
    add_case("every op of " + std::string(to_string(dtype)) + " through every kind of ring", "",
             [dtype] {
               for (const Variant& variant : variants()) {
                 for (const ReduceOp op : kAllReduceOps) {
                   if (dtype == DataType::Bool && op == ReduceOp::Average) continue;
                   for (const int ranks : {1, 2, 3}) {
                     CAPTURE(variant.name, to_string(op), ranks);
                     check_type_and_op(dtype, op, ranks, ranks_of(ranks, variant.options));
                   }
                 }
               }
             });
  }
  return true;
}();

std::vector<Call> large_calls(int ranks) {
  const std::vector<std::size_t> tiny(600, 2);
  std::vector<Call> calls;
  for (const bool in_place : {false, true}) {
    for (const auto& counts : std::vector<std::vector<std::size_t>>{
             {12'000}, {1024}, {4097, 1, 8192}, tiny, {1, 3000, 3, 7, 5501}}) {
      calls.push_back({{DataType::F32, ReduceOp::Average, 1.0, 1.0, ranks}, counts, in_place});
    }
  }
  return calls;
}

[[maybe_unused]] const bool kSizesRegistered = [] {
  using Reduce = ShmOptions::Reduce;
  using Stores = ShmOptions::Stores;
  for (const int ranks : {2, 3, 4, 8}) {
    add_case("operations larger than the ring of " + std::to_string(ranks) + " ranks", "", [ranks] {
      for (const Reduce reduce : {Reduce::Auto, Reduce::Flat, Reduce::Sliced}) {
        for (const Stores stores : {Stores::Auto, Stores::Streaming}) {
          CAPTURE(static_cast<int>(reduce), static_cast<int>(stores));
          const ShmOptions options = with({.slots = 3, .slot_bytes = 4 << 10}, reduce, stores);
          check_calls(large_calls(ranks), ranks_of(ranks, options));
        }
      }
    });
  }
  return true;
}();

TEST_CASE("results are the same bits whatever the ring, and from run to run") {
  for (const DataType dtype : {DataType::F32, DataType::BF16}) {
    const std::vector<Call> calls = {
        {{dtype, ReduceOp::Sum, 0.3, 1.7, 5}, {1000, 1, 0, 333}, false},
        {{dtype, ReduceOp::Average, 1.0, 1.0, 5}, {4097}, true}};
    const auto first = results_of(calls, ranks_of(5, {}));
    for (const Variant& variant : variants()) {
      CAPTURE(variant.name);
      CHECK(results_of(calls, ranks_of(5, variant.options)) == first);
    }
  }
}

TEST_CASE("ranks may add nothing to some of the segments") {
  for (const Variant& variant : variants()) {
    CAPTURE(variant.name);
    const RunRanks ranks = ranks_of(3, variant.options);
    check_absent(DataType::F32, ReduceOp::Sum, 3, ranks);
    check_absent(DataType::F32, ReduceOp::Min, 3, ranks);
    check_absent(DataType::I16, ReduceOp::Product, 3, ranks);
    check_absent(DataType::F16, ReduceOp::Average, 3, ranks);
  }
}

/// The call's segments one behind the other in the symmetric heap, from `begin` on, with gaps.
std::vector<Segment> symmetric_segments(const SymmetricHeap& heap, const Call& call,
                                        const Elements& input, std::size_t begin) {
  std::vector<Segment> segments;
  const auto* from = static_cast<const std::byte*>(input.data());
  for (const std::size_t count : call.counts) {
    const std::size_t bytes = count * size_of(input.dtype());
    std::byte* const at = heap.own(begin);
    std::copy_n(from, bytes, at);
    segments.push_back({at, at, count});
    from += bytes;
    begin += (bytes / SymmetricHeap::kAlignment + 1) * SymmetricHeap::kAlignment;
  }
  return segments;
}

Elements gathered(DataType dtype, const std::vector<Segment>& segments) {
  Elements all(dtype, total_elements(segments));
  auto* to = static_cast<std::byte*>(all.data());
  for (const Segment& segment : segments) {
    to = std::copy_n(static_cast<const std::byte*>(segment.output), segment.count * size_of(dtype),
                     to);
  }
  return all;
}

/// As check_calls, in place in the symmetric heap; of the ranks in `late` the others do the work
/// before they come.
void check_symmetric(const std::vector<Call>& calls, const std::vector<int>& late = {}) {
  const int ranks = calls.front().reduction.ranks;
  std::vector<std::vector<Elements>> results(static_cast<std::size_t>(ranks));
  std::barrier all(ranks);
  run_backends(ranks, {}, [&](int rank, shm::ShmBackend& backend) {
    const bool is_late = std::find(late.begin(), late.end(), rank) != late.end();
    for (const Call& call : calls) {
      const Elements input = inputs_of(call)[static_cast<std::size_t>(rank)];
      const auto segments = symmetric_segments(*backend.symmetric_heap(), call, input, 4160);
      AllreduceCall symmetric = as_call(call, segments);
      symmetric.symmetric = true;
      all.arrive_and_wait();
      if (is_late) all.arrive_and_wait();
      finish(*backend.allreduce(symmetric));
      if (!is_late) all.arrive_and_wait();
      results[static_cast<std::size_t>(rank)].push_back(gathered(call.reduction.dtype, segments));
    }
  });
  for (std::size_t i = 0; i < calls.size(); ++i) {
    CAPTURE(describe(calls[i]));
    CHECK(difference(calls[i], inputs_of(calls[i]), results[0][i]) == "");
    for (const auto& of_rank : results) CHECK(of_rank[i] == results[0][i]);
  }
}

[[maybe_unused]] const bool kSymmetricRegistered = [] {
  for (const DataType dtype : kAllDataTypes) {
    add_case("every op of " + std::string(to_string(dtype)) + " in the symmetric heap", "",
             [dtype] {
               for (const int ranks : {1, 2, 3}) {
                 std::vector<Call> calls;
                 for (const ReduceOp op : kAllReduceOps) {
                   if (dtype == DataType::Bool && op == ReduceOp::Average) continue;
                   for (const auto& counts : kLists) {
                     const double scale = dtype == DataType::Bool ? 1.0 : 0.5;
                     calls.push_back({{dtype, op, scale, scale, ranks}, counts, true});
                   }
                 }
                 CAPTURE(ranks);
                 check_symmetric(calls);
               }
             });
  }
  return true;
}();

TEST_CASE("ranks that compute elsewhere are reduced for") {
  for (const int ranks : {2, 3, 4}) {
    std::vector<Call> calls;
    // Several chunks, cut in the middle of segments.
    for (const auto& counts : std::vector<std::vector<std::size_t>>{
             {100'000}, {3, 70'001, 0, 9}, {33'000, 33'000, 33'000}}) {
      calls.push_back({{DataType::F32, ReduceOp::Average, 1.0, 1.0, ranks}, counts, true});
    }
    CAPTURE(ranks);
    check_symmetric(calls, {ranks - 1});
    check_symmetric(calls, {0});
  }
}

TEST_CASE("symmetric operations count who did what, and refuse other memory") {
  std::vector<float> elsewhere(10);
  run_backends(1, {}, [&](int, shm::ShmBackend& backend) {
    const Segment outside{elsewhere.data(), elsewhere.data(), elsewhere.size()};
    bool refused = false;
    try {
      backend.allreduce({.segments = {&outside, 1}, .symmetric = true});
    } catch (const Error&) {
      refused = true;
    }
    check(refused, "a symmetric buffer outside the heap is refused");
    void* const inside = backend.symmetric_heap()->own(0);
    const Segment segment{inside, inside, kHeapBytes / sizeof(float)};
    finish(*backend.allreduce({.segments = {&segment, 1}, .symmetric = true}));
    const StatsGroup stats = backend.stats();
    for (const auto& [name, value] : stats.counters) {
      if (name == "symmetric_operations") check(value == 1, "one operation");
      if (name == "symmetric_bytes") check(value == kHeapBytes, "of the whole heap");
      if (name == "symmetric_chunks_here") check(value == 8, "in 8 chunks, all done here");
    }
  });
}

}  // namespace
}  // namespace ronde::test
