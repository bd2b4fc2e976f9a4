// SPDX-License-Identifier: Apache-2.0
// Allreduce of every type and op through rings of all kinds, against numbers reduced in double
// precision or 64-bit integers; and the same bits on every rank.
#include <algorithm>
#include <string>
#include <vector>

#include "case_table.h"
#include "group.h"
#include "oracle.h"

namespace ronde::test {
namespace {

/// One allreduce on a list of segments.
struct Call {
  Reduction reduction;
  std::vector<std::size_t> counts;  ///< of the segments
  bool in_place = false;
  std::uint64_t seed = 1;
};

std::size_t total(const std::vector<std::size_t>& counts) {
  std::size_t sum = 0;
  for (const std::size_t count : counts) sum += count;
  return sum;
}

/// What every rank puts in, rank after rank.
std::vector<Elements> inputs_of(const Call& call) {
  std::vector<Elements> inputs;
  for (int rank = 0; rank < call.reduction.ranks; ++rank) {
    inputs.push_back(
        make_input(call.reduction.dtype, call.reduction.op, total(call.counts), rank, call.seed));
  }
  return inputs;
}

/// Whether `rank` contributes to `segment`, in calls where some do not.
bool is_absent(int rank, std::size_t segment, std::uint64_t seed) {
  return (static_cast<std::uint64_t>(rank) * 7 + segment * 3 + seed) % 3 == 0;
}

AllreduceCall as_call(const Call& call, const std::vector<Segment>& segments) {
  return {.segments = segments,
          .dtype = call.reduction.dtype,
          .op = call.reduction.op,
          .prescale = call.reduction.prescale,
          .postscale = call.reduction.postscale};
}

std::vector<Segment> segments_of(const std::vector<std::size_t>& counts, const Elements& input,
                                 Elements& output) {
  std::vector<Segment> segments;
  std::size_t offset = 0;
  for (const std::size_t count : counts) {
    const auto* from = static_cast<const std::byte*>(input.data()) + offset;
    auto* to = static_cast<std::byte*>(output.data()) + offset;
    segments.push_back({from, to, count});
    offset += count * size_of(input.dtype());
  }
  return segments;
}

std::string difference(const Call& call, const std::vector<Elements>& inputs,
                       const Elements& result) {
  if (is_floating(call.reduction.dtype)) {
    std::vector<double> numbers;
    for (const Elements& input : inputs) {
      const std::vector<double> more = input.numbers();
      numbers.insert(numbers.end(), more.begin(), more.end());
    }
    return first_difference(call.reduction, numbers, result);
  }
  std::vector<std::int64_t> integers;
  for (const Elements& input : inputs) {
    const std::vector<std::int64_t> more = input.integers();
    integers.insert(integers.end(), more.begin(), more.end());
  }
  return first_difference(call.reduction, integers, result);
}

/// The results of all ranks, of calls one after the other on the same backend.
std::vector<std::vector<Elements>> results_of(const std::vector<Call>& calls,
                                              const ShmOptions& options) {
  const int ranks = calls.front().reduction.ranks;
  std::vector<std::vector<Elements>> results(static_cast<std::size_t>(ranks));
  run_backends(ranks, options, [&](int rank, shm::ShmBackend& backend) {
    for (const Call& call : calls) {
      const Elements input = inputs_of(call)[static_cast<std::size_t>(rank)];
      Elements output = call.in_place ? input : Elements(input.dtype(), input.count());
      const auto segments = segments_of(call.counts, call.in_place ? output : input, output);
      finish(*backend.allreduce(as_call(call, segments)));
      results[static_cast<std::size_t>(rank)].push_back(std::move(output));
    }
  });
  return results;
}

std::string describe(const Call& call) {
  return std::to_string(total(call.counts)) + " elements in " + std::to_string(call.counts.size()) +
         " segments" + (call.in_place ? ", in place" : "") +
         (call.reduction.prescale != 1.0 ? ", scaled" : "");
}

void check_calls(const std::vector<Call>& calls, const ShmOptions& options) {
  const auto results = results_of(calls, options);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    CAPTURE(describe(calls[i]));
    CHECK(difference(calls[i], inputs_of(calls[i]), results[0][i]) == "");
    for (const auto& of_rank : results) CHECK(of_rank[i] == results[0][i]);
  }
}

/// Lists that slots of 128 bytes and of 128 KiB cut in all ways.
const std::vector<std::vector<std::size_t>> kLists = {
    {}, {0}, {1}, {7}, {64}, {129}, {1000}, {0, 1, 0, 31, 2, 0, 500, 33, 1, 1, 64, 0},
};

void check_type_and_op(DataType dtype, ReduceOp op, int ranks, const ShmOptions& options) {
  std::vector<Call> calls;
  for (const bool scaled : {false, true}) {
    if (scaled && dtype == DataType::Bool) continue;
    const double prescale = !scaled ? 1.0 : is_floating(dtype) ? 0.3 : 0.5;
    const double postscale = !scaled ? 1.0 : is_floating(dtype) ? 1.7 : 0.25;
    for (const bool in_place : {false, true}) {
      for (const auto& counts : kLists) {
        calls.push_back(
            {{dtype, op, prescale, postscale, ranks}, counts, in_place, calls.size() + 1});
      }
    }
  }
  check_calls(calls, options);
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
                     check_type_and_op(dtype, op, ranks, variant.options);
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
          check_calls(large_calls(ranks),
                      with({.slots = 3, .slot_bytes = 4 << 10}, reduce, stores));
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
    const auto first = results_of(calls, {});
    for (const Variant& variant : variants()) {
      CAPTURE(variant.name);
      CHECK(results_of(calls, variant.options) == first);
    }
  }
}

/// Ranks that add nothing to some of the segments: the oracle sees the neutral element there.
void check_absent(DataType dtype, ReduceOp op, const ShmOptions& options) {
  constexpr int kRanks = 3;
  constexpr std::uint64_t kSeed = 4;
  // More pieces than a round may have.
  std::vector<std::size_t> counts(1100, 2);
  counts.insert(counts.end(), {1, 100, 0, 257, 64});
  // A scale that a neutral element would not survive, had it been written as a number.
  const double prescale = dtype == DataType::F32 ? -2.0 : 1.0;
  std::vector<Elements> results(kRanks, Elements(dtype, total(counts)));
  run_backends(kRanks, options, [&](int rank, shm::ShmBackend& backend) {
    const Elements input = make_input(dtype, op, total(counts), rank, kSeed);
    auto segments = segments_of(counts, input, results[static_cast<std::size_t>(rank)]);
    for (std::size_t i = 0; i < segments.size(); ++i) {
      if (is_absent(rank, i, kSeed)) segments[i].input = nullptr;
    }
    finish(
        *backend.allreduce({.segments = segments, .dtype = dtype, .op = op, .prescale = prescale}));
  });
  std::size_t offset = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    CAPTURE(i);
    std::vector<Elements> present;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (is_absent(rank, i, kSeed)) continue;
      const Elements all = make_input(dtype, op, total(counts), rank, kSeed);
      Elements part(dtype, counts[i]);
      std::copy_n(static_cast<const std::byte*>(all.data()) + offset, part.bytes().size(),
                  static_cast<std::byte*>(part.data()));
      present.push_back(part);
    }
    Elements result(dtype, counts[i]);
    std::copy_n(static_cast<const std::byte*>(results[0].data()) + offset, result.bytes().size(),
                static_cast<std::byte*>(result.data()));
    offset += result.bytes().size();
    if (present.empty()) continue;
    const Call call = {{dtype, op, prescale, 1.0, kRanks}, {counts[i]}, false};
    CHECK(difference(call, present, result) == "");
  }
  for (const Elements& result : results) CHECK(result == results[0]);
}

TEST_CASE("ranks may add nothing to some of the segments") {
  for (const Variant& variant : variants()) {
    CAPTURE(variant.name);
    check_absent(DataType::F32, ReduceOp::Sum, variant.options);
    check_absent(DataType::F32, ReduceOp::Min, variant.options);
    check_absent(DataType::I16, ReduceOp::Product, variant.options);
    check_absent(DataType::F16, ReduceOp::Average, variant.options);
  }
}

}  // namespace
}  // namespace ronde::test
