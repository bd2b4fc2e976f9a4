// SPDX-License-Identifier: Apache-2.0
// Reducescatter on whole runtimes, against an oracle in double precision.
#include <catch2/catch.hpp>
#include <cstring>

#include "ronde/error.h"
#include "tests/support/case_table.h"
#include "tests/unit/rows_of_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

std::int64_t rows_on(int rank, std::int64_t rows, int ranks) {
  return rows / ranks + (rank < rows % ranks ? 1 : 0);
}

enum class Placement { Allocated, Given, OwnPart, FrontOfInput };

/// Compares `result` with what the ranks brought, from row `first` on.
void check_part(const Case& test, const TensorValues& result, std::int64_t first, double prescale,
                double postscale) {
  for (std::size_t i = 0; i < result.count(); ++i) {
    const double expected =
        expected_reduction(test, index(first * kColumns) + i, prescale, postscale);
    const double difference = std::abs(result.get(i) - expected);
    check(difference <= tolerance(test.dtype, expected),
          std::to_string(result.get(i)) + " is near " + std::to_string(expected));
  }
}

void scatter(const Case& test, std::int64_t rows, Placement placement, bool scaled, int rank,
             Runtime& runtime) {
  const std::int64_t mine = rows_on(rank, rows, test.ranks);
  std::int64_t first = 0;
  for (int before = 0; before < rank; ++before) first += rows_on(before, rows, test.ranks);
  TensorValues input = input_of(test, rank, rows);
  TensorValues given(test.dtype, index(mine * kColumns));
  Allocated allocated(test.dtype);
  Request request;
  request.kind = Collective::Reducescatter;
  request.name = "r";
  request.dtype = test.dtype;
  request.op = test.op;
  request.prescale = scaled ? 0.5 : 1.0;
  request.postscale = scaled ? 3.0 : 1.0;
  request.shape = {rows, kColumns};
  request.input = input.data();
  const std::size_t offset = index(first * kColumns) * size_of(test.dtype);
  auto* in_place = static_cast<std::byte*>(input.data());
  if (placement == Placement::OwnPart) in_place += offset;
  if (placement == Placement::Allocated) {
    request.allocate_output = allocated.allocator();
  } else {
    request.output = placement == Placement::Given ? given.data() : in_place;
  }
  const double prescale = request.prescale;
  const double postscale = request.postscale;
  runtime.submit(std::move(request)).wait();
  if (placement == Placement::Allocated) {
    check(allocated.shape == Rows{mine, kColumns}, "the shape of the result");
    given = allocated.elements.value();
  } else if (placement != Placement::Given && given.bytes() > 0) {
    std::memcpy(given.data(), in_place, given.bytes());
  }
  check_part(test, given, first, prescale, postscale);
}

void check_reducescatter(const Case& test, std::uint64_t fusion) {
  Config config = test_config();
  config.fusion_bytes = fusion;
  run_group(
      test.ranks,
      [&](int rank, Runtime& runtime) {
        for (const std::int64_t rows : {0, 1, 2, 7, 100}) {
          for (const bool scaled : {false, true}) {
            for (const Placement placement : {Placement::Allocated, Placement::Given,
                                              Placement::OwnPart, Placement::FrontOfInput}) {
              scatter(test, rows, placement, scaled, rank, runtime);
            }
          }
        }
        check(counter_of(runtime, "response_cache", "hits") == 30, "all but the first of each hit");
      },
      config);
}

const bool registered = [] {
  for (const DataType dtype : kAllDataTypes) {
    const std::string tail = " of " + std::string(to_string(dtype)) + " over 1 to 4 ranks";
    add_case("reducescatter" + tail, "", [dtype] {
      for (const int ranks : {1, 2, 3, 4}) {
        for (const ReduceOp op : kElementwiseOps) {
          if (dtype == DataType::Bool && op == ReduceOp::Average) continue;
          const Case test{Collective::Reducescatter, dtype, op, ranks};
          check_reducescatter(test, op == ReduceOp::Max ? 1 << 20 : 64);
        }
      }
    });
  }
  return true;
}();

}  // namespace

TEST_CASE("a reducescatter that cannot be is refused on every rank") {
  const auto refused = [](const std::function<void(Request&, int)>& change,
                          const std::string& expected) {
    run_group(2, [&](int rank, Runtime& runtime) {
      std::vector<float> values(12, 1.0F);
      Request request = sum_request(values, "x");
      request.kind = Collective::Reducescatter;
      request.shape = {4, kColumns};
      change(request, rank);
      check_contains(usage_error_of(runtime.submit(request)), expected);
    });
  };
  refused([](Request& request, int) { request.shape = {}; },
          "reducescatter 'x': a scalar has no first dimension to split along");
  refused(
      [](Request& request, int) {
        request.dtype = DataType::Bool;
        request.op = ReduceOp::Average;
      },
      "bools have no average");
  refused(
      [](Request& request, int rank) {
        request.shape = {4 - rank, kColumns};
      },
      "rank 1: reducescatter f32 [3, 3] sum on cpu");
  refused([](Request& request, int rank) { request.prescale = rank; },
          "rank 0: reducescatter f32 [4, 3] sum prescale 0 on cpu");
}

TEST_CASE("a rank whose part of a reducescatter has no rows needs no output") {
  run_group(3, [](int rank, Runtime& runtime) {
    std::vector<float> values(2, 1.0F);
    Request request = sum_request(values, "x");
    request.kind = Collective::Reducescatter;
    if (rank == 2) request.output = nullptr;
    runtime.submit(request).wait();
    if (rank < 2) check(values[0] == 3.0F, "the sum");
  });
}

TEST_CASE("a rank without a contribution gets its part of the others' reducescatter") {
  run_group(2, [](int rank, Runtime& runtime) {
    for (const ReduceOp op : kElementwiseOps) {
      std::vector<float> values(4, 3.0F);
      Request request = sum_request(values, "x");
      request.kind = Collective::Reducescatter;
      request.op = op;
      request.contributes = rank == 1;
      const Work work = runtime.submit(request);
      work.wait();
      check(work.contributed(), "rank 1 did");
      check(values[0] == (op == ReduceOp::Average ? 1.5F : 3.0F), "what rank 1 brought");
      request.contributes = false;
      values.assign(4, 7.0F);
      const Work nothing = runtime.submit(request);
      nothing.wait();
      check(!nothing.contributed() && values[0] == 7.0F, "nobody did");
    }
  });
}

TEST_CASE("what has rows of its own on each rank runs from a frozen schedule, and thaws it") {
  constexpr int kSteps = 60;
  constexpr int kDeviation = 40;
  run_group(2, [](int rank, Runtime& runtime) {
    for (int step = 0; step < kSteps; ++step) {
      const auto number = static_cast<float>(step);
      std::vector<float> values(12, number + static_cast<float>(rank));
      const Rows splits = rank == 1 && step == kDeviation ? Rows{4, 0} : Rows{1, 3};
      Allocated exchanged(DataType::F32);
      const Work exchange =
          runtime.submit(alltoall_request(values, {4, kColumns}, splits, exchanged));
      Allocated gathered(DataType::F32);
      Request gather = alltoall_request(values, {1 + rank, kColumns}, {}, gathered);
      gather.kind = Collective::Allgather;
      gather.name = "gather";
      const Work gathering = runtime.submit(gather);
      Allocated scattered(DataType::F32);
      Request scatter = alltoall_request(values, {3, kColumns}, {}, scattered);
      scatter.kind = Collective::Reducescatter;
      scatter.name = "scatter";
      runtime.submit(scatter).wait();
      gathering.wait();
      exchange.wait();
      const std::int64_t of_first = rank == 0 ? 1 : 3;
      std::int64_t of_second = of_first;
      if (step == kDeviation) of_second = rank == 0 ? 4 : 0;
      check(exchange.received_splits() == Rows{of_first, of_second}, "the splits of this step");
      const std::size_t first = index(of_first * kColumns);
      for (std::size_t i = 0; i < exchanged.elements->count(); ++i) {
        check(exchanged.elements->get(i) == number + (i < first ? 0 : 1), "an exchanged element");
      }
      check(gathered.shape == Rows{3, kColumns}, "three rows together");
      check(gathered.elements->get(0) == number && gathered.elements->get(8) == number + 1,
            "the rows of both");
      check(scattered.shape == Rows{rank == 0 ? 2 : 1, kColumns}, "its rows");
      check(scattered.elements->get(0) == 2 * number + 1, "the sum");
    }
    check(counter_of(runtime, "schedule", "freezes") >= 1, "the steps were frozen");
    check(counter_of(runtime, "schedule", "thaws") >= 1, "and the deviation thawed them");
  });
}
