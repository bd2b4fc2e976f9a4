// SPDX-License-Identifier: Apache-2.0
// Collectives on whole runtimes: how they are fused, and what tests/sweeps/oracle, which has the
// product of collectives, types, ops and ranks, does not ask.
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr int kRanks = 3;
constexpr int kRoot = 2;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
/// None, one, an odd number, exactly a tiny fusion buffer, and more than that.
constexpr std::size_t kSizes[] = {0, 1, 7, 64, 333};
/// No fusion, a tiny buffer, and one that takes everything.
constexpr std::uint64_t kFusionBytes[] = {0, 256, std::uint64_t{1} << 20};

/// Returns a rank's element `i`: small, so that every type holds the results.
double brought(int rank, std::size_t i) {
  return static_cast<double>(i % 7) + rank;
}

/// Ranks gather parts of different sizes, the others' tensors are alike.
std::size_t count_of(Collective kind, std::size_t size, int rank) {
  return kind == Collective::Allgather ? size * static_cast<std::size_t>(rank) : size;
}

std::vector<double> expected_of(Collective kind, std::size_t size) {
  std::vector<double> expected;
  if (kind == Collective::Allgather) {
    for (int rank = 0; rank < kRanks; ++rank) {
      for (std::size_t i = 0; i < count_of(kind, size, rank); ++i) {
        expected.push_back(brought(rank, i));
      }
    }
    return expected;
  }
  for (std::size_t i = 0; i < size; ++i) {
    // Scaled by four before, and by a half after.
    const double sum = 2 * (brought(0, i) + brought(1, i) + brought(2, i));
    expected.push_back(kind == Collective::Broadcast ? brought(kRoot, i) : sum);
  }
  return expected;
}

/// A tensor on its way, in place or not.
struct InFlight {
  InFlight(Collective kind_, DataType dtype, std::size_t size_, int rank, bool in_place_)
      : kind(kind_),
        size(size_),
        in_place(in_place_ && kind_ != Collective::Allgather),
        input(dtype, count_of(kind_, size_, rank)),
        output(dtype, expected_of(kind_, size_).size()) {
    for (std::size_t i = 0; i < input.count(); ++i) input.set(i, brought(rank, i));
    if (in_place) output = input;
  }

  Request request(const std::string& name, int rank) {
    Request request;
    request.kind = kind;
    request.name = name;
    request.dtype = input.dtype();
    request.root = kRoot;
    request.shape = {static_cast<std::int64_t>(input.count())};
    request.output = output.data();
    request.input = in_place ? output.data() : input.data();
    // A broadcast needs no input but that of its root, and not even that in place.
    if (kind == Collective::Broadcast && (rank != kRoot || in_place)) request.input = nullptr;
    if (kind == Collective::Allreduce) {
      request.prescale = 4;
      request.postscale = 0.5;
    }
    return request;
  }

  void check_result() const {
    std::vector<double> got;
    for (std::size_t i = 0; i < output.count(); ++i) got.push_back(output.get(i));
    check_equal(got, expected_of(kind, size), std::string(to_string(kind)));
  }

  Collective kind;
  std::size_t size;
  bool in_place;
  TensorValues input, output;
};

/// Submits every size in place and not, each rank in another order, twice: the second time comes
/// from the response cache.
void run_fused(Collective kind, DataType dtype, std::uint64_t fusion_bytes) {
  Config config = test_config();
  config.fusion_bytes = fusion_bytes;
  const auto body = [&](int rank, Runtime& runtime) {
    for (int step = 0; step < 2; ++step) {
      std::vector<InFlight> tensors;
      for (const std::size_t size : kSizes) {
        for (const bool in_place : {true, false}) {
          tensors.emplace_back(kind, dtype, size, rank, in_place);
        }
      }
      std::vector<Work> works;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const std::size_t index = (i * 3 + static_cast<std::size_t>(rank)) % tensors.size();
        works.push_back(runtime.submit(tensors[index].request("t" + std::to_string(index), rank)));
      }
      for (const Work& work : works) work.wait();
      for (const InFlight& tensor : tensors) tensor.check_result();
    }
  };
  run_group(kRanks, body, config);
}

}  // namespace

TEST_CASE("allreduces, broadcasts and allgathers are the same fused, in chunks and alone") {
  for (const Collective kind :
       {Collective::Allreduce, Collective::Broadcast, Collective::Allgather}) {
    for (const DataType dtype : {DataType::F32, DataType::I16, DataType::BF16}) {
      for (const std::uint64_t bytes : kFusionBytes) {
        CAPTURE(to_string(kind), to_string(dtype), bytes);
        run_fused(kind, dtype, bytes);
      }
    }
  }
}

TEST_CASE("NaN wins whichever rank has it, integers wrap around, halves are rounded once") {
  struct Row {
    DataType dtype;
    ReduceOp op;
    std::array<double, kRanks> brought;
    double expected;
  };
  const Row rows[] = {{DataType::F16, ReduceOp::Min, {kNan, 5, 5}, kNan},
                      {DataType::BF16, ReduceOp::Max, {5, kNan, 5}, kNan},
                      {DataType::F32, ReduceOp::Sum, {5, 5, kNan}, kNan},
                      {DataType::F32, ReduceOp::Max, {kNan, 5, 5}, kNan},
                      {DataType::F64, ReduceOp::Min, {5, 5, kNan}, kNan},
                      {DataType::U8, ReduceOp::Sum, {200, 200, 0}, 144},
                      {DataType::U8, ReduceOp::Product, {200, 200, 1}, 64},
                      {DataType::I64, ReduceOp::Sum, {-0x1p63, -0x1p63, 0}, 0},
                      // Each single addition of one would be lost.
                      {DataType::F16, ReduceOp::Sum, {2048, 1, 1}, 2050}};
  run_group(kRanks, [&](int rank, Runtime& runtime) {
    for (const Row& row : rows) {
      TensorValues value(row.dtype, 1);
      value.set(0, row.brought[static_cast<std::size_t>(rank)]);
      Request request;
      request.dtype = row.dtype;
      request.op = row.op;
      request.shape = {1};
      request.input = request.output = value.data();
      runtime.submit(request).wait();
      const double got = value.get(0);
      check(std::isnan(row.expected) ? std::isnan(got) : got == row.expected,
            std::string(to_string(row.dtype)) + " " + std::string(to_string(row.op)));
    }
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
