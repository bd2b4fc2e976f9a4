// SPDX-License-Identifier: Apache-2.0
// Reductions to one rank, factors of a rank's own, and gather and scatter as alltoalls. Types, ops,
// sizes and joined ranks are those of the oracle and of random programs: tests/sweeps.
#include <catch2/catch.hpp>

#include "tests/support/ranks/faulty_group.h"
#include "tests/support/ranks/goes_on.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Floats = std::vector<float>;

constexpr int kRanks = 3;

Request reduce_request(Floats& values, const std::string& name, int root) {
  Request request = sum_request(values, name);
  request.kind = Collective::Reduce;
  request.root = root;
  return request;
}

/// Every rank sends all of its numbers to the root, which alone receives any.
Request gather_request(const Floats& mine, int root, int ranks) {
  Request request;
  request.kind = Collective::Alltoall;
  request.shape = {std::ssize(mine)};
  request.splits.assign(static_cast<std::size_t>(ranks), 0);
  request.splits.at(static_cast<std::size_t>(root)) = std::ssize(mine);
  request.input = mine.data();
  return request;
}

/// The root sends `counts[r]` of its numbers to rank r; the others have none to send.
Request scatter_request(const Floats& all, const std::vector<std::int64_t>& counts, bool is_root) {
  Request request;
  request.kind = Collective::Alltoall;
  request.shape = {is_root ? std::ssize(all) : 0};
  if (is_root) request.splits = counts;
  request.input = all.data();
  return request;
}

/// The result of a request without an output.
Floats result_of(Runtime& runtime, Request request) {
  Floats result;
  request.allocate_output = [&result](const std::vector<std::int64_t>& shape) {
    result.resize(static_cast<std::size_t>(shape.at(0)));
    return result.data();
  };
  runtime.run(std::move(request));
  return result;
}

/// Twelve numbers, or six complex ones; the ranks have factors of 10, 20 and 30.
template <typename Number>
void check_scaled(Runtime& runtime, DataType dtype, int rank) {
  std::vector<Number> mine(12), sums(12);
  for (std::size_t i = 0; i < 12; ++i) {
    for (int each = 0; each < kRanks; ++each) {
      const auto number = static_cast<Number>(each) - static_cast<Number>(i);
      if (each == rank) mine[i] = number;
      sums[i] += static_cast<Number>(10 * (each + 1)) * number;
    }
  }
  const auto run = [&](Collective kind, const void* input, void* output) {
    Request request;
    request.kind = kind;
    request.name = "scaled";
    request.dtype = dtype;
    request.shape = {static_cast<std::int64_t>(12 * sizeof(Number) / size_of(dtype))};
    request.input = input;
    request.output = output;
    request.root = 2;
    request.rank_factor = 10.0 * (rank + 1);
    runtime.run(request);
  };
  std::vector<Number> input = mine, output(12);
  run(Collective::Allreduce, input.data(), output.data());
  check(input == mine && output == sums, "an allreduce from one place to another");
  run(Collective::Allreduce, input.data(), input.data());
  check(input == sums, "an allreduce in place");
  output.assign(12, 0);
  input = mine;
  run(Collective::Reduce, input.data(), output.data());
  check(input == mine && output == (rank == 2 ? sums : std::vector<Number>(12)), "a reduce");
  run(Collective::Reducescatter, input.data(), output.data());
  check(input == mine && std::equal(output.begin(), output.begin() + 4, sums.begin() + 4 * rank),
        "a reducescatter");
}

}  // namespace

TEST_CASE("a reduce writes to its root alone, fused with others of that root, cached and frozen") {
  Config config = test_config();
  config.verify = GENERATE(false, true);
  config.freeze_after_steps = 2;
  config.cycle_time_ms = 10000.0;  // gather until somebody waits
  const auto body = [](int rank, Runtime& runtime) {
    for (int step = 0; step < 6; ++step) {
      const std::uint64_t buckets = counter_of(runtime, "execution", "buckets");
      std::vector<Floats> inputs(4, Floats(5, static_cast<float>(rank + 1)));
      std::vector<Floats> outputs(4, Floats(5, -1.0F));
      std::vector<Work> works;
      for (std::size_t i = 0; i < 4; ++i) {
        Request request = reduce_request(inputs[i], "r" + std::to_string(i), i < 2 ? 0 : 1);
        request.op = ReduceOp::Average;
        request.output = i % 2 == 0 || rank == request.root ? outputs[i].data() : nullptr;
        works.push_back(runtime.submit(std::move(request)));
      }
      for (const Work& work : works) work.wait();
      for (std::size_t i = 0; i < 4; ++i) {
        check_equal(outputs[i], Floats(5, rank == (i < 2 ? 0 : 1) ? 2.0F : -1.0F), "an output");
      }
      const std::uint64_t more = counter_of(runtime, "execution", "buckets") - buckets;
      check(step == 0 || more == 2, "one bucket a root");
    }
  };
  run_group(kRanks, body, config);
}

TEST_CASE("a reduce whose roots differ, or are none, or whose root lacks an output is refused") {
  run_group(kRanks, [](int rank, Runtime& runtime) {
    Floats values(4, 1.0F);
    check_contains(usage_error_of(runtime.submit(reduce_request(values, "r", kRanks))),
                   "root 3 is out of range");
    check_contains(usage_error_of(runtime.submit(reduce_request(values, "s", rank / 2))),
                   "rank 2: reduce f32 [4] sum root 1 on cpu");
    Request request = reduce_request(values, "t", rank);
    request.output = nullptr;
    check_contains(text_of<UsageError>([&] { runtime.submit(request); }), "output is null");
    check_goes_on(runtime);
  });
}

TEST_CASE("each rank's own factor scales its input of a reduction, and no other rank's") {
  Config config = test_config();
  config.fusion_bytes = 64;  // in chunks
  const auto body = [](int rank, Runtime& runtime) {
    check_scaled<float>(runtime, DataType::F32, rank);
    check_scaled<double>(runtime, DataType::F64, rank);
    check_scaled<float>(runtime, DataType::C64, rank);
    check_scaled<double>(runtime, DataType::C128, rank);
    TensorValues half(DataType::F16, std::vector<double>{2046});
    Request request;
    request.dtype = DataType::F16;
    request.input = request.output = half.data();
    request.rank_factor = rank == 0 ? 3 : -2;
    request.contributes = rank < 2;
    const PersistentOp prepared = runtime.prepare(request);
    prepared.start(take_start(request)).wait();
    check_equal(half.get(0), 2044.0, "6138, rounded to 6136, less 4092");
  };
  run_group(kRanks, body, config);
}

TEST_CASE("a backend that lacks a type moves it as bytes, and does not reduce it") {
  const FaultyGroup group(2);
  for (const auto& faults : group.faults) {
    faults->change_capabilities([](Capabilities& capabilities) {
      capabilities.dtypes.reset(static_cast<std::size_t>(DataType::U32));
      capabilities.ops = 0b11111;
    });
  }
  run_ranks(2, [&](int rank) {
    Runtime runtime(group.options(rank));
    const std::uint32_t mine = 0xfffffff0U + static_cast<unsigned>(rank);
    std::vector<std::uint32_t> all(2);
    Request request;
    request.kind = Collective::Allgather;
    request.dtype = DataType::U32;
    request.shape = {1};
    request.input = &mine;
    request.output = all.data();
    runtime.run(request);
    check_equal(all, std::vector{0xfffffff0U, 0xfffffff1U}, "what both have");
    request.kind = Collective::Allreduce;
    check_contains(usage_error_of(runtime.submit(request)), "cannot do allreduce u32 [1] sum");
    request.dtype = DataType::I32;
    request.op = ReduceOp::BitXor;
    check_contains(usage_error_of(runtime.submit(request)), "cannot do allreduce i32 [1] bit_xor");
    runtime.shutdown();
  });
}

TEST_CASE("a gather and a scatter are alltoalls with splits") {
  run_group(kRanks, [](int rank, Runtime& runtime) {
    const Floats mine(static_cast<std::size_t>(rank) + 1, static_cast<float>(rank));
    const Floats all = result_of(runtime, gather_request(mine, 1, kRanks));
    check_equal(all, rank == 1 ? Floats{0, 1, 1, 2, 2, 2} : Floats{}, "the gathered numbers");
    const Floats part = result_of(runtime, scatter_request(all, {2, 1, 3}, rank == 1));
    check_equal(part,
                std::vector<Floats>{{0, 1}, {1}, {2, 2, 2}}.at(static_cast<std::size_t>(rank)),
                "the scattered ones");
  });
}
