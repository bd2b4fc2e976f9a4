// SPDX-License-Identifier: Apache-2.0
// Every collective, type and op on whole runtimes, against an oracle in double precision.
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <optional>

#include "tests/support/case_table.h"
#include "tests/support/ranks.h"
#include "tests/support/requests.h"
#include "tests/unit/reduction_oracle.h"

namespace {

using namespace ronde;
using namespace ronde::test;

/// None, one, an odd number, exactly a tiny fusion buffer, and more than that.
const std::vector<std::size_t> kSizes = {0, 1, 7, 64, 333};
/// No fusion, a tiny buffer, and one that takes everything.
const std::vector<std::uint64_t> kFusionBytes = {0, 256, std::uint64_t{1} << 20};

/// The tensors of one rank: each size in place and not.
struct Tensors {
  std::vector<TensorValues> inputs;
  std::vector<TensorValues> outputs;
  std::vector<bool> in_place;
};

Tensors make_tensors(const Case& test, int rank) {
  Tensors tensors;
  for (const std::size_t size : kSizes) {
    for (const bool in_place : {true, false}) {
      TensorValues input(test.dtype, size);
      for (std::size_t i = 0; i < size; ++i) input.set(i, brought(test, rank, i));
      tensors.inputs.push_back(input);
      tensors.outputs.emplace_back(test.dtype, size);
      tensors.in_place.push_back(in_place);
    }
  }
  return tensors;
}

Request request_of(const Case& test, Tensors& tensors, std::size_t index) {
  Request request;
  request.kind = test.kind;
  request.name = "t" + std::to_string(index);
  request.dtype = test.dtype;
  request.op = test.op;
  request.shape = {static_cast<std::int64_t>(tensors.inputs[index].count())};
  request.input = tensors.inputs[index].data();
  request.output =
      tensors.in_place[index] ? tensors.inputs[index].data() : tensors.outputs[index].data();
  return request;
}

/// Results of all ranks, to be compared once they have ended.
using Results = std::vector<std::vector<TensorValues>>;

/// Submits every tensor, each rank in another order, and waits for all.
std::vector<TensorValues> run_all(Runtime& runtime, int rank, Tensors& tensors,
                                  const std::function<Request(std::size_t)>& request) {
  const std::size_t count = tensors.inputs.size();
  std::vector<Work> works;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t index = (i * 3 + static_cast<std::size_t>(rank)) % count;
    works.push_back(runtime.submit(request(index)));
  }
  for (const Work& work : works) work.wait();
  std::vector<TensorValues> results;
  for (std::size_t i = 0; i < count; ++i) {
    results.push_back(tensors.in_place[i] ? tensors.inputs[i] : tensors.outputs[i]);
  }
  return results;
}

void check_equal_on_all_ranks(const Results& results) {
  for (const auto& rank : results) check(rank == results[0], "results are bit-identical");
}

void check_allreduce(const Case& test, double prescale, double postscale, std::uint64_t fusion) {
  Results results(static_cast<std::size_t>(test.ranks));
  Config config = test_config();
  config.fusion_bytes = fusion;
  run_group(
      test.ranks,
      [&](int rank, Runtime& runtime) {
        Tensors tensors = make_tensors(test, rank);
        results[static_cast<std::size_t>(rank)] =
            run_all(runtime, rank, tensors, [&](std::size_t index) {
              Request request = request_of(test, tensors, index);
              request.prescale = prescale;
              request.postscale = postscale;
              return request;
            });
      },
      config);
  check_equal_on_all_ranks(results);
  for (const TensorValues& result : results[0]) {
    for (std::size_t i = 0; i < result.count(); ++i) {
      const double expected = expected_reduction(test, i, prescale, postscale);
      if (std::abs(result.get(i) - expected) <= tolerance(test.dtype, expected)) continue;
      CAPTURE(result.count(), i, fusion, prescale, postscale);
      CHECK(result.get(i) == expected);
    }
  }
}

void check_broadcast(const Case& test, int root, std::uint64_t fusion) {
  Results results(static_cast<std::size_t>(test.ranks));
  Config config = test_config();
  config.fusion_bytes = fusion;
  run_group(
      test.ranks,
      [&](int rank, Runtime& runtime) {
        Tensors tensors = make_tensors(test, rank);
        results[static_cast<std::size_t>(rank)] =
            run_all(runtime, rank, tensors, [&](std::size_t index) {
              Request request = request_of(test, tensors, index);
              request.root = root;
              // Null is allowed everywhere but on the root, and there where it is in place.
              const bool needed = rank == root && !tensors.in_place[index];
              if (!needed) request.input = nullptr;
              return request;
            });
      },
      config);
  check_equal_on_all_ranks(results);
  const Tensors sent = make_tensors(test, root);
  for (std::size_t index = 0; index < sent.inputs.size(); ++index) {
    CHECK(results[0][index] == sent.inputs[index]);
  }
}

/// Rows that `rank` gives in case number `variant`, among them none at all.
std::size_t rows_of(int rank, std::size_t variant) {
  return (static_cast<std::size_t>(rank) * 3 + variant * 5) % 8 * (variant == 3 ? 40 : 1);
}

void gather_on(const Case& test, int rank, Runtime& runtime, std::size_t variant) {
  constexpr std::size_t kColumns = 3;
  TensorValues input(test.dtype, rows_of(rank, variant) * kColumns);
  for (std::size_t i = 0; i < input.count(); ++i) input.set(i, brought(test, rank, i));
  std::optional<TensorValues> output;
  std::vector<std::int64_t> shape;
  Request request;
  request.kind = Collective::Allgather;
  request.name = "g";
  request.dtype = test.dtype;
  request.shape = {static_cast<std::int64_t>(rows_of(rank, variant)), kColumns};
  request.input = input.data();
  request.allocate_output = [&](const std::vector<std::int64_t>& result_shape) {
    check(!output, "the output is allocated once");
    shape = result_shape;
    output.emplace(test.dtype, static_cast<std::size_t>(shape[0] * shape[1]));
    return output->data();
  };
  runtime.submit(std::move(request)).wait();
  check(output.has_value(), "the output was allocated");
  std::size_t position = 0;
  for (int from = 0; from < test.ranks; ++from) {
    for (std::size_t i = 0; i < rows_of(from, variant) * kColumns; ++i) {
      check(output->get(position++) == brought(test, from, i), "an element of the gather");
    }
  }
  check(position == output->count(), "the size of the gather");
  check(shape == std::vector<std::int64_t>{static_cast<std::int64_t>(position / kColumns), 3},
        "the shape of the gather");
}

void check_allgather(const Case& test, std::uint64_t fusion) {
  Config config = test_config();
  config.fusion_bytes = fusion;
  run_group(
      test.ranks,
      [&](int rank, Runtime& runtime) {
        // Twice each, so that the second comes from the response cache.
        for (std::size_t variant = 0; variant < 8; ++variant) {
          gather_on(test, rank, runtime, variant / 2);
        }
      },
      config);
}

const bool registered = [] {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const DataType dtype : kAllDataTypes) {
      const std::string tail =
          " of " + std::string(to_string(dtype)) + " over " + std::to_string(ranks) + " ranks";
      for (const ReduceOp op : kElementwiseOps) {
        if (dtype == DataType::Bool && op == ReduceOp::Average) continue;
        add_case(std::string(to_string(op)) + tail, "", [=] {
          const Case test{Collective::Allreduce, dtype, op, ranks};
          for (const std::uint64_t fusion : kFusionBytes) check_allreduce(test, 1, 1, fusion);
          check_allreduce(test, 0.5, 3.0, 256);
        });
      }
      add_case("broadcast" + tail, "", [=] {
        const Case test{Collective::Broadcast, dtype, ReduceOp::Sum, ranks};
        for (const std::uint64_t fusion : kFusionBytes) check_broadcast(test, ranks - 1, fusion);
        check_broadcast(test, 0, 256);
      });
      add_case("allgather" + tail, "", [=] {
        const Case test{Collective::Allgather, dtype, ReduceOp::Sum, ranks};
        for (const std::uint64_t fusion : kFusionBytes) check_allgather(test, fusion);
      });
    }
  }
  return true;
}();

}  // namespace

TEST_CASE("min and max propagate NaN, whichever rank has it") {
  for (const DataType dtype : {DataType::F16, DataType::BF16, DataType::F32, DataType::F64}) {
    for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum}) {
      run_group(3, [&](int rank, Runtime& runtime) {
        TensorValues values(dtype, 3);
        for (std::size_t i = 0; i < 3; ++i) {
          values.set(i, static_cast<int>(i) == rank ? std::numeric_limits<double>::quiet_NaN() : 5);
        }
        Request request;
        request.dtype = dtype;
        request.op = op;
        request.shape = {3};
        request.input = request.output = values.data();
        runtime.submit(request).wait();
        for (std::size_t i = 0; i < 3; ++i) check(std::isnan(values.get(i)), "NaN wins");
      });
    }
  }
}

TEST_CASE("integer sums and products wrap around") {
  run_group(2, [](int rank, Runtime& runtime) {
    std::vector<std::uint8_t> values = {200, 16};
    Request request;
    request.dtype = DataType::U8;
    request.shape = {2};
    request.input = request.output = values.data();
    runtime.submit(request).wait();
    check(values == std::vector<std::uint8_t>{144, 32}, "the sum modulo 256");
    values = {200, 16};
    request.op = ReduceOp::Product;
    runtime.submit(request).wait();
    check(values == std::vector<std::uint8_t>{64, 0}, "the product modulo 256");
    std::int64_t large = std::numeric_limits<std::int64_t>::max();
    if (rank == 1) large = 1;
    request.op = ReduceOp::Sum;
    request.dtype = DataType::I64;
    request.shape = {};
    request.input = request.output = &large;
    runtime.submit(request).wait();
    check(large == std::numeric_limits<std::int64_t>::min(), "the sum modulo 2^64");
  });
}

TEST_CASE("halves are reduced in f32 with one rounding") {
  // 2048 + 1 + 1: in f16 each single addition would be lost.
  run_group(3, [](int rank, Runtime& runtime) {
    TensorValues value(DataType::F16, 1);
    value.set(0, rank == 0 ? 2048 : 1);
    Request request;
    request.dtype = DataType::F16;
    request.shape = {1};
    request.input = request.output = value.data();
    runtime.submit(request).wait();
    check(value.get(0) == 2050, "both small ones count");
  });
}

TEST_CASE("a barrier ends only once every rank is in it") {
  std::atomic<int> entered{0};
  run_group(4, [&](int, Runtime& runtime) {
    for (int round = 1; round <= 5; ++round) {
      entered.fetch_add(1);
      runtime.submit(barrier_request()).wait();
      check(entered.load() >= 4 * round, "all have entered");
      runtime.submit(barrier_request("named")).wait();
    }
  });
}

TEST_CASE("a broadcast without elements and a gather without rows move nothing") {
  run_group(2, [](int, Runtime& runtime) {
    Request broadcast;
    broadcast.kind = Collective::Broadcast;
    broadcast.shape = {0, 5};
    runtime.submit(broadcast).wait();
    Request gather;
    gather.kind = Collective::Allgather;
    gather.shape = {0, 5};
    std::vector<std::int64_t> shape;
    gather.allocate_output = [&](const std::vector<std::int64_t>& result) {
      shape = result;
      return static_cast<void*>(nullptr);
    };
    runtime.submit(gather).wait();
    check(shape == std::vector<std::int64_t>{0, 5}, "the shape is told all the same");
  });
}

TEST_CASE("a gather into memory that the caller holds") {
  run_group(3, [](int rank, Runtime& runtime) {
    const float mine = static_cast<float>(rank);
    std::vector<float> all(3);
    Request gather;
    gather.kind = Collective::Allgather;
    gather.shape = {1};
    gather.input = &mine;
    gather.output = all.data();
    runtime.submit(gather).wait();
    check(all == std::vector<float>{0, 1, 2}, "in rank order");
  });
}
