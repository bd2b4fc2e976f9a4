// SPDX-License-Identifier: Apache-2.0
#include "tests/shm/calls.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "tests/support/harness/sanitizers.h"
#include "tests/support/ranks/requests.h"

namespace ronde::test {
namespace {

std::size_t total(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

std::vector<Elements> inputs_of(const Call& call) {
  const Reduction& reduction = call.reduction;
  return make_inputs(reduction.dtype, reduction.op, total(call.counts), reduction.ranks, call.seed);
}

/// Whether `rank` contributes to `segment`, in calls where some do not.
bool is_absent(int rank, std::size_t segment, std::uint64_t seed) {
  return (static_cast<std::uint64_t>(rank) * 7 + segment * 3 + seed) % 3 == 0;
}

/// Whether `rank` wants its result of `segment` in these calls; rank 0 wants all.
bool is_wanted(int rank, std::size_t segment) {
  return rank == 0 || (segment + static_cast<std::size_t>(rank)) % 3 != 0;
}

AllreduceCall as_call(const Reduction& reduction, const std::vector<Segment>& segments) {
  return {.segments = segments,
          .dtype = reduction.dtype,
          .op = combining_op(reduction.op),
          .prescale = reduction.prescale,
          .final = final_of(reduction),
          .wire_dtype = reduction.wire_dtype};
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

/// Every rank's result if each has `input`.
std::vector<float> results_by_halves(const Reduction& reduction, float input,
                                     const RunRanks& run_ranks) {
  std::vector<float> results(static_cast<std::size_t>(reduction.ranks));
  run_ranks([&](int rank, const RunAllreduce& allreduce) {
    const std::vector<Segment> segments = {{&input, &results[static_cast<std::size_t>(rank)], 1}};
    allreduce(as_call(reduction, segments));
  });
  return results;
}

/// Checks averages whose sums overflow f16, within a host and over all, and averages of the
/// smallest numbers of f16, which must not underflow in a host's sum.
void check_extreme_averages(int ranks, const RunRanks& run_ranks) {
  constexpr DataType kFull = DataType::F32, kHalf = DataType::F16;
  const std::vector<std::pair<ReduceOp, double>> rows = {
      {ReduceOp::Average, 1.0}, {ReduceOp::Average, 0.5}, {ReduceOp::Sum, 1.0 / ranks}};
  for (const auto& [op, postscale] : rows) {
    CAPTURE(to_string(op), postscale, ranks);
    const double expected = 60000 * postscale * (op == ReduceOp::Sum ? ranks : 1);
    // Allows half a unit of f16 for each host's sum and for the total.
    for (const float result :
         results_by_halves({kFull, op, 1.0, postscale, ranks, kHalf}, 60000, run_ranks)) {
      CHECK(result == Approx(expected).epsilon(0.001));
    }
  }
  constexpr float kUnit = 0x1p-24F;
  // Hosts' sums are rounded, so results may differ by a unit.
  for (const float result : results_by_halves({kFull, ReduceOp::Average, 1.0, 1.0, ranks, kHalf},
                                              2 * kUnit, run_ranks)) {
    CHECK(result >= 2 * kUnit);
    CHECK(result <= 3 * kUnit);
  }
}

std::string describe(const Call& call) {
  return std::to_string(total(call.counts)) + " elements in " + std::to_string(call.counts.size()) +
         " segments" + (call.in_place ? ", in place" : "") +
         (call.reduction.prescale != 1.0 ? ", scaled" : "");
}

/// Lists that slots of 128 bytes and of 128 KiB cut in different ways.
const std::vector<std::vector<std::size_t>> kLists = {
    {}, {0}, {1}, {7}, {64}, {129}, {1000}, {0, 1, 0, 31, 2, 0, 500, 33, 1, 1, 64, 0},
};

/// Returns `count` elements of `all`, from `begin` on.
Elements part_of(const Elements& all, std::size_t begin, std::size_t count) {
  Elements part(all.dtype(), count);
  std::ranges::copy(all.bytes(begin, count), static_cast<std::byte*>(part.data()));
  return part;
}

void check_absent(const Reduction& reduction, const RunRanks& run_ranks) {
  const DataType dtype = reduction.dtype;
  const int ranks = reduction.ranks;
  constexpr std::uint64_t kSeed = 4;
  // More pieces than a round may have.
  std::vector<std::size_t> counts(1100, 2);
  counts.insert(counts.end(), {1, 100, 0, 257, 64});
  // With this scale, a neutral element that was written as a number would change the result.
  Reduction scaled = reduction;
  if (dtype == DataType::F32) scaled.prescale = -2.0;
  const auto inputs = make_inputs(dtype, reduction.op, total(counts), ranks, kSeed);
  std::vector<Elements> results(static_cast<std::size_t>(ranks), Elements(dtype, total(counts)));
  run_ranks([&](int rank, const RunAllreduce& allreduce) {
    const auto own = static_cast<std::size_t>(rank);
    auto segments = segments_of(counts, inputs[own], results[own]);
    for (std::size_t i = 0; i < segments.size(); ++i) {
      if (is_absent(rank, i, kSeed)) segments[i].input = nullptr;
      if (!is_wanted(rank, i)) segments[i].output = nullptr;
    }
    allreduce(as_call(scaled, segments));
  });
  std::size_t begin = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    CAPTURE(i);
    std::vector<Elements> present;
    for (int rank = 0; rank < ranks; ++rank) {
      if (is_absent(rank, i, kSeed)) continue;
      present.push_back(part_of(inputs[static_cast<std::size_t>(rank)], begin, counts[i]));
    }
    const Elements result = part_of(results[0], begin, counts[i]);
    for (int rank = 0; rank < ranks; ++rank) {
      const Elements expected = is_wanted(rank, i) ? result : Elements(dtype, counts[i]);
      CHECK(part_of(results[static_cast<std::size_t>(rank)], begin, counts[i]) == expected);
    }
    begin += counts[i];
    if (present.empty()) continue;
    CHECK(first_difference(scaled, present, result) == "");
  }
}

}  // namespace

std::vector<std::vector<Elements>> results_of(const std::vector<Call>& calls,
                                              const RunRanks& run_ranks) {
  const int ranks = calls.front().reduction.ranks;
  std::vector<std::vector<Elements>> results(static_cast<std::size_t>(ranks));
  run_ranks([&](int rank, const RunAllreduce& allreduce) {
    for (const Call& call : calls) {
      const Elements input =
          make_input(call.reduction.dtype, call.reduction.op, total(call.counts), rank, call.seed);
      Elements output = call.in_place ? input : Elements(input.dtype(), input.count());
      const auto segments = segments_of(call.counts, call.in_place ? output : input, output);
      allreduce(as_call(call.reduction, segments));
      results[static_cast<std::size_t>(rank)].push_back(std::move(output));
    }
  });
  return results;
}

void check_calls(const std::vector<Call>& calls, const RunRanks& run_ranks) {
  const auto results = results_of(calls, run_ranks);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    CAPTURE(describe(calls[i]));
    CHECK(first_difference(calls[i].reduction, inputs_of(calls[i]), results[0][i]) == "");
    for (const auto& of_rank : results) CHECK(of_rank[i] == results[0][i]);
  }
}

void check_lists(const Reduction& reduction, const RunRanks& run_ranks) {
  const DataType dtype = reduction.dtype;
  std::vector<Call> calls;
  for (const bool scaled : {false, true}) {
    if (scaled && !is_floating(dtype)) continue;  // backends get no scaled integers
    const double prescale = scaled ? 0.3 : 1.0;
    const double postscale = scaled ? 1.7 : 1.0;
    for (const bool in_place : {false, true}) {
      for (const auto& counts : kLists) {
        Call& call = calls.emplace_back(Call{reduction, counts, in_place, calls.size() + 1});
        call.reduction.prescale = prescale;
        call.reduction.postscale = postscale;
      }
    }
  }
  check_calls(calls, run_ranks);
}

void check_every_op(int ranks, const RunRanks& run_ranks) {
  // With sanitizers one type of each size, as memory accesses depend on the size only.
  const std::vector<DataType> dtypes = plain_or_sanitized(
      kRealDataTypes, {DataType::U8, DataType::BF16, DataType::F32, DataType::I64});
  for (const DataType dtype : dtypes) {
    for (const ReduceOp op : ops_of(dtype)) {
      if (!is_floating(dtype) && op == ReduceOp::Average) continue;
      CAPTURE(to_string(dtype), to_string(op), ranks);
      check_lists({dtype, op, 1.0, 1.0, ranks}, run_ranks);
    }
  }
}

void check_absent(int ranks, const RunRanks& run_ranks) {
  check_absent({DataType::F32, ReduceOp::Sum, 1.0, 1.0, ranks}, run_ranks);
  check_absent({DataType::F32, ReduceOp::Min, 1.0, 1.0, ranks}, run_ranks);
  check_absent({DataType::I16, ReduceOp::Product, 1.0, 1.0, ranks}, run_ranks);
  check_absent({DataType::F16, ReduceOp::Average, 1.0, 1.0, ranks}, run_ranks);
  check_absent({DataType::U64, ReduceOp::BitAnd, 1.0, 1.0, ranks}, run_ranks);
}

void check_wire_dtypes(int ranks, int hosts, const RunRanks& run_ranks) {
  for (const DataType dtype : {DataType::F32, DataType::F64}) {
    for (const DataType wire : {DataType::F16, DataType::BF16}) {
      for (const ReduceOp op : kElementwiseOps) {
        // The result of an op depends on the half type only.
        const bool is_main = (dtype == DataType::F32) == (wire == DataType::BF16);
        if (!is_main && op != ReduceOp::Average) continue;
        CAPTURE(to_string(dtype), to_string(wire), to_string(op));
        check_lists({dtype, op, 1.0, 1.0, ranks, wire, hosts}, run_ranks);
      }
    }
  }
  check_absent({DataType::F32, ReduceOp::Sum, 1.0, 1.0, ranks, DataType::BF16, hosts}, run_ranks);
  check_absent({DataType::F64, ReduceOp::Min, 1.0, 1.0, ranks, DataType::F16, hosts}, run_ranks);
  check_extreme_averages(ranks, run_ranks);
}

}  // namespace ronde::test
