// SPDX-License-Identifier: Apache-2.0
// Reducescatter on whole runtimes; its types and ops are those of tests/sweeps/oracle.
#include <catch2/catch.hpp>

#include "tests/support/ranks/rows_of_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

std::int64_t rows_on(int rank, std::int64_t rows, int ranks) {
  return rows / ranks + (rank < rows % ranks ? 1 : 0);
}

enum class Target { Allocated, Given, OwnPart, FrontOfInput };

void scatter(std::int64_t rows, ReduceOp op, Target target, bool scaled, int rank,
             Runtime& runtime) {
  const int ranks = runtime.topology().size;
  const std::int64_t mine = rows_on(rank, rows, ranks);
  std::int64_t first = 0;
  for (int before = 0; before < rank; ++before) first += rows_on(before, rows, ranks);
  std::vector<float> input = input_of(rank, rows);
  std::vector<float> given(index(mine * kColumns));
  Allocated allocated;
  Request request;
  request.kind = Collective::Reducescatter;
  request.name = "r";
  request.op = op;
  request.prescale = scaled ? 0.5 : 1.0;
  request.postscale = scaled ? 4.0 : 1.0;
  request.shape = {rows, kColumns};
  request.input = input.data();
  float* const in_place = input.data() + (target == Target::OwnPart ? index(first * kColumns) : 0);
  if (target == Target::Allocated) {
    request.allocate_output = allocated.allocator();
  } else {
    request.output = target == Target::Given ? given.data() : in_place;
  }
  runtime.submit(std::move(request)).wait();
  if (target == Target::Allocated) {
    check_equal(allocated.shape, Rows{mine, kColumns}, "the shape of the result");
    given = allocated.elements.value();
  } else if (target != Target::Given) {
    given.assign(in_place, in_place + given.size());
  }
  std::vector<float> expected;
  for (std::size_t i = 0; i < given.size(); ++i) {
    // Rank r brings 10,000 * (r + 1) more than the number of the element.
    const auto size = static_cast<float>(ranks);
    const auto element = static_cast<float>(index(first * kColumns) + i);
    const float sum = 5'000 * size * (size + 1) + size * element;
    const float most = 10'000 * size + element;
    expected.push_back((scaled ? 2.0F : 1.0F) * (op == ReduceOp::Max ? most : sum));
  }
  check_equal(given, expected, "this rank's part");
}

}  // namespace

TEST_CASE("parts of a reducescatter go wherever they are wanted, over one to four ranks") {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Max}) {
      Config config = test_config();
      config.fusion_bytes = op == ReduceOp::Max ? 1 << 20 : 64;
      const auto body = [op](int rank, Runtime& runtime) {
        for (const std::int64_t rows : {0, 1, 2, 7, 100}) {
          for (const bool scaled : {false, true}) {
            for (const Target target :
                 {Target::Allocated, Target::Given, Target::OwnPart, Target::FrontOfInput}) {
              scatter(rows, op, target, scaled, rank, runtime);
            }
          }
        }
        check(counter_of(runtime, "response_cache", "hits") == 30, "all but the first of each hit");
      };
      run_group(ranks, body, config);
    }
  }
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
