// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/mpi_backend.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "ronde/error.h"
#include "tests/support/fakes/fake_mpi.h"
#include "tests/support/ranks/ranks.h"

namespace {

using Catch::Contains;
using ronde::AllreduceCall;
using ronde::DataType;
using ronde::ReduceOp;
using ronde::Segment;
using ronde::mpi::MpiBackend;
using ronde::mpi::testing::FakeMpi;
using ronde::mpi::testing::StartedCall;
using ronde::test::counter_of;

/// Elements to be summed in place.
struct Sum {
  explicit Sum(std::size_t count) : data(count) {}

  std::vector<float> data;
  const Segment segment{data.data(), data.data(), data.size()};
  const AllreduceCall call{.segments = {&segment, 1}, .dtype = DataType::F32, .op = ReduceOp::Sum};
};

/// A call that MPI must have received.
struct Expected {
  std::string name;
  const void* data;
  int count;
  int root = -1;
};

void check_started(const FakeMpi& fake, const std::vector<Expected>& calls) {
  REQUIRE(fake.started.size() == calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    CAPTURE(i);
    CHECK(fake.started[i].name == calls[i].name);
    CHECK(fake.started[i].data == calls[i].data);
    CHECK(fake.started[i].count == calls[i].count);
    CHECK(fake.started[i].root == calls[i].root);
  }
}

}  // namespace

TEST_CASE("allreduces and messages above the largest count go in chunks that cover them") {
  FakeMpi fake;
  fake.size = 3;
  const auto environment = fake.environment();
  MpiBackend backend(environment, {.max_count = 1000});
  const Sum sum(2500);
  const auto operation = backend.allreduce(sum.call);
  const float* const data = sum.data.data();
  check_started(fake, {{"iallreduce", data, 1000},
                       {"iallreduce", data + 1000, 1000},
                       {"iallreduce", data + 2000, 500}});
  CHECK(operation->progress() == 0);
  CHECK(operation->poll());
  CHECK(operation->progress() == 3);
  CHECK(backend.capabilities().waiting == ronde::Waiting::Poll);
  CHECK(MpiBackend(environment, {.between_hosts = true}).capabilities().waiting ==
        ronde::Waiting::Pause);
  CHECK(counter_of(backend.stats(), "collective_calls") == 3);
  CHECK(counter_of(backend.stats(), "payload_bytes") == 10'000);

  fake.started.clear();
  std::vector<std::int32_t> sent(2500);
  CHECK(backend.send({.input = sent.data(), .count = 2500, .dtype = DataType::I32, .peer = 2})
            ->poll());
  CHECK(backend.recv({.output = sent.data(), .count = 1000, .dtype = DataType::I32, .peer = 1})
            ->poll());
  check_started(fake, {{"isend", sent.data(), 1000, 2},
                       {"isend", sent.data() + 1000, 1000, 2},
                       {"isend", sent.data() + 2000, 500, 2},
                       {"irecv", sent.data(), 1000, 1}});
  for (const StartedCall& call : fake.started) CHECK(call.type == MPI_UINT32_T);
}

TEST_CASE("exact sums and products of floats are messages; MPI reduces what has no order") {
  FakeMpi fake;
  fake.size = 3;
  MpiBackend backend(fake.environment(), {.exact = true});
  std::vector<double> data(6);
  const Segment segment{data.data(), data.data(), data.size()};
  const std::vector<std::size_t> counts = {2, 2, 2};
  const auto dtype = GENERATE(DataType::F32, DataType::F64, DataType::I32);
  const auto op = GENERATE(ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min);
  const bool has_order = dtype != DataType::I32 && op != ReduceOp::Min;
  CHECK(backend.allreduce({.segments = {&segment, 1}, .dtype = dtype, .op = op})->poll());
  CHECK(fake.calls["iallreduce"] == (has_order ? 0 : 1));
  CHECK(fake.calls["isend"] == (has_order ? 4 : 0));
  std::vector<double> output(2);
  CHECK(backend.reducescatter({data.data(), output.data(), counts, dtype, op})->poll());
  CHECK(fake.calls["ireduce_scatter"] == (has_order ? 0 : 1));
  CHECK(counter_of(backend.stats(), "in_rank_order_operations") == (has_order ? 2 : 0));
}

TEST_CASE("an allgather or reducescatter above the largest count becomes messages between pairs") {
  FakeMpi fake;
  fake.size = 3;
  MpiBackend backend(fake.environment(), {.max_count = 1000});
  std::vector<std::int16_t> gathered(300);
  std::iota(gathered.begin(), gathered.end(), std::int16_t{1});
  std::vector<std::int16_t> all(1100);
  const std::vector<std::size_t> parts = {300, 0, 800};
  const auto gather = backend.allgather({gathered.data(), all.data(), parts, DataType::I16});
  CHECK(gather->poll());
  check_started(fake, {{"irecv", all.data() + 300, 1000, 2},
                       {"irecv", all.data() + 800, 600, 2},
                       {"isend", all.data(), 600, 1},
                       {"isend", all.data(), 600, 2}});
  CHECK(std::equal(gathered.begin(), gathered.end(), all.begin()));

  std::vector<std::int32_t> input(2300), output(700);
  const auto scatter = [&](const std::vector<std::size_t>& counts) {
    fake.started.clear();
    fake.calls.clear();
    return backend.reducescatter(
        {input.data(), output.data(), counts, DataType::I32, ReduceOp::Max});
  };
  CHECK(scatter({700, 0, 300})->poll());
  REQUIRE(fake.started.size() == 1);
  CHECK(fake.started[0].name == "ireduce_scatter");
  CHECK(scatter({700, 0, 1600})->poll());
  CHECK(fake.calls["isend"] == 7);  // 6,400 bytes to one of the others
  CHECK(fake.calls["irecv"] == 6);  // 2,800 bytes from each
}

TEST_CASE("messages between pairs are posted in the order of calls, not of polls") {
  FakeMpi fake;
  fake.size = 3;
  MpiBackend backend(fake.environment(), {.max_count = 10});
  const std::vector<std::size_t> counts = {4, 4, 4};
  std::vector<std::uint8_t> input(12);
  std::vector<std::uint8_t> output(12);
  const auto gather = backend.allgather({input.data(), output.data(), counts, DataType::U8});
  CHECK(fake.calls["isend"] == 2);
  const auto scatter = backend.reducescatter({input.data(), output.data(), counts, DataType::U8});
  CHECK(fake.calls["isend"] == 4);
  CHECK(scatter->poll());
  CHECK(gather->poll());
  CHECK(fake.calls["isend"] == 4);
}

TEST_CASE("an alltoall above the largest count becomes messages between pairs") {
  FakeMpi fake;
  fake.size = 2;
  MpiBackend backend(fake.environment(), {.max_count = 1000});
  std::vector<std::int16_t> input(1800);
  std::vector<std::int16_t> output(700);
  const auto start = [&](std::size_t sent, std::size_t received, std::size_t largest) {
    const std::vector<std::size_t> send_counts = {500, sent};
    const std::vector<std::size_t> receive_counts = {500, received};
    fake.started.clear();
    return backend.alltoall(
        {input.data(), output.data(), send_counts, receive_counts, largest, DataType::I16});
  };
  // The largest count of any rank decides, as all ranks must make the same calls.
  CHECK(start(100, 100, 500)->poll());
  REQUIRE(fake.started.size() == 1);
  CHECK(fake.started[0].name == "ialltoallv");
  CHECK(start(100, 100, 501)->poll());
  CHECK(fake.started.size() == 2);
  CHECK(start(1300, 200, 1300)->poll());
  check_started(fake, {{"irecv", output.data() + 500, 400, 1},
                       {"isend", input.data() + 500, 1000, 1},
                       {"isend", input.data() + 1000, 1000, 1},
                       {"isend", input.data() + 1500, 600, 1}});
}

TEST_CASE("a rank that sends nothing passes two addresses to an alltoall") {
  FakeMpi fake;
  fake.size = 2;
  MpiBackend backend(fake.environment(), {});
  std::vector<std::int32_t> data(2);
  const std::vector<std::size_t> nothing = {0, 0};
  for (const std::vector<std::size_t>& received : {nothing, {0, 2}}) {
    fake.started.clear();
    CHECK(
        backend.alltoall({data.data(), data.data(), nothing, received, 2, DataType::I32})->poll());
    REQUIRE(fake.started.size() == 1);
    CHECK(fake.started[0].data != data.data());
  }
}

TEST_CASE("empty collectives start nothing and are finished") {
  FakeMpi fake;
  MpiBackend backend(fake.environment(), {});
  const Segment segment{nullptr, nullptr, 0};
  const std::vector<std::size_t> counts = {0};
  CHECK(backend.allreduce({.segments = {&segment, 1}})->poll());
  CHECK(backend.broadcast({.segments = {&segment, 1}})->poll());
  CHECK(backend.allgather({.counts = counts})->poll());
  CHECK(backend.alltoall({.send_counts = counts, .receive_counts = counts})->poll());
  const float element = 0;
  CHECK(backend.reducescatter({.input = &element, .counts = counts})->poll());
  CHECK(fake.started.empty());
}

TEST_CASE("integer sums and products go through unsigned types, where they wrap") {
  FakeMpi fake;
  MpiBackend backend(fake.environment(), {});
  std::array<std::int64_t, 1> data = {0};
  const Segment segment{data.data(), data.data(), 1};
  const auto started = [&](DataType dtype, ReduceOp op) {
    backend.allreduce({{&segment, 1}, dtype, op});
    return fake.started.back();
  };
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Product}) {
    CHECK(started(DataType::I8, op).type == MPI_UINT8_T);
    CHECK(started(DataType::I16, op).type == MPI_UINT16_T);
    CHECK(started(DataType::I32, op).type == MPI_UINT32_T);
    CHECK(started(DataType::I64, op).type == MPI_UINT64_T);
  }
  CHECK(started(DataType::I32, ReduceOp::Min).type == MPI_INT32_T);
  CHECK(started(DataType::Bool, ReduceOp::Sum).op == MPI_LOR);
  CHECK(started(DataType::Bool, ReduceOp::Max).op == MPI_LOR);
  CHECK(started(DataType::Bool, ReduceOp::Product).op == MPI_LAND);
  CHECK(started(DataType::Bool, ReduceOp::Min).op == MPI_LAND);
}

TEST_CASE("a collective that fails throws the call's name and native text") {
  FakeMpi fake;
  MpiBackend backend(fake.environment(), {.max_count = 10});
  const Sum sum(30);
  SECTION("at once") {
    fake.codes["iallreduce"] = 15;
    CHECK_THROWS_WITH(backend.allreduce(sum.call),
                      Contains("MPI_Iallreduce failed with code 15: native text of 15"));
  }
  SECTION("in its second chunk") {
    fake.codes["iallreduce"] = 15;
    fake.fail_at["iallreduce"] = 1;
    CHECK_THROWS_WITH(backend.allreduce(sum.call), Contains("MPI_Iallreduce failed"));
    CHECK(fake.started.size() == 2);
  }
  SECTION("in progress") {
    const auto operation = backend.allreduce(sum.call);
    fake.requests_finish = false;
    CHECK_FALSE(operation->poll());
    fake.codes["test"] = 17;
    CHECK_THROWS_WITH(operation->poll(),
                      Contains("MPI_Test failed with code 17: native text of 17"));
  }
}

TEST_CASE("close frees what was made, abort frees nothing and calls no MPI") {
  const bool closes = GENERATE(true, false);
  FakeMpi fake;
  {
    MpiBackend backend(fake.environment(), {});
    CHECK(fake.calls["op_create"] == 16);
    const Sum sum(30);
    fake.requests_finish = closes;
    const auto operation = backend.allreduce(sum.call);
    CHECK(operation->poll() == closes);
    const auto before = fake.calls;
    if (closes) backend.close();
    if (!closes) backend.abort();
    if (!closes) CHECK(fake.calls == before);
  }
  CHECK(fake.calls["op_free"] == (closes ? 16 : 0));
  CHECK(fake.calls["comm_free"] == (closes ? 1 : 0));
  CHECK(fake.calls["finalize"] == (closes ? 1 : 0));
}

TEST_CASE("calls that a packed backend never gets are refused") {
  FakeMpi fake;
  MpiBackend backend(fake.environment(), {});
  Sum sum(4);
  std::array<float, 4> other = {};
  const Segment apart{sum.data.data(), other.data(), other.size()};
  const std::array two = {sum.segment, sum.segment};
  const std::vector<std::size_t> counts = {4};
  const std::vector<std::size_t> too_many = {2, 2};
  const std::vector<AllreduceCall> reductions = {
      {.segments = {&sum.segment, 1}, .op = ReduceOp::Average},
      {.segments = {&sum.segment, 1}, .dtype = DataType::BF16},
      {.segments = {&sum.segment, 1}, .prescale = 2},
      {.segments = {&sum.segment, 1}, .final = {0.5, 1}},
      {.segments = two},
      {.segments = {&apart, 1}}};
  for (const AllreduceCall& call : reductions) {
    CHECK_THROWS_AS(backend.allreduce(call), ronde::Error);
  }
  float* const data = sum.data.data();
  const std::vector<ronde::ReducescatterCall> scatters = {
      {data, data, counts, DataType::F32, ReduceOp::Average},
      {data, data, counts, DataType::BF16},
      {data, data, counts, DataType::F32, ReduceOp::Sum, 2},
      {data, data, counts, DataType::F32, ReduceOp::Sum, 1, {0.5, 1}},
      {nullptr, data, counts},
      {data, data, too_many}};
  for (const ronde::ReducescatterCall& call : scatters) {
    CHECK_THROWS_AS(backend.reducescatter(call), ronde::Error);
  }
  CHECK_THROWS_AS(backend.alltoall({.send_counts = too_many, .receive_counts = counts}),
                  ronde::Error);
  CHECK_THROWS_AS(backend.alltoall({.send_counts = counts, .receive_counts = too_many}),
                  ronde::Error);
  CHECK(fake.started.empty());
}

TEMPLATE_TEST_CASE("own min and max give the same bits whatever the order of operands", "", float,
                   double) {
  constexpr DataType kType = sizeof(TestType) == 4 ? DataType::F32 : DataType::F64;
  const auto combined = [](ReduceOp op, TestType a, TestType b) {
    int one = 1;
    for (const auto& [dtype, own, function] : ronde::mpi::own_operators()) {
      if (dtype == kType && own == op) function(&a, &b, &one, nullptr);
    }
    return b;
  };
  const TestType nan = std::numeric_limits<TestType>::quiet_NaN();
  const std::array<TestType, 6> values = {0,  -TestType{0}, 1,
                                          -1, nan,          std::copysign(nan, TestType{-1})};
  for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Max}) {
    for (const TestType a : values) {
      for (const TestType b : values) {
        const TestType one = combined(op, a, b), other = combined(op, b, a);
        CHECK(std::memcmp(&one, &other, sizeof one) == 0);
        CHECK(std::isnan(one) == (std::isnan(a) || std::isnan(b)));
      }
    }
  }
  CHECK(std::signbit(combined(ReduceOp::Min, 0, -TestType{0})));
  CHECK_FALSE(std::signbit(combined(ReduceOp::Max, 0, -TestType{0})));
  CHECK(combined(ReduceOp::Max, 1, -1) == 1);
}
