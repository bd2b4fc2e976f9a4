// SPDX-License-Identifier: Apache-2.0
// Allreduces over shared memory and over MPI: special values, what travels, and Adasum. Those of
// every type and op are in collectives_test.cc and ../oracle.
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "ronde/ronde.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/oracle/oracle.h"
#include "tests/support/oracle/plain_mpi.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {
namespace {

/// The result, which is right, and has the same bits on every rank.
Elements check_allreduce(PlainMpi& mpi, const Reduction& reduction,
                         const std::vector<Elements>& inputs) {
  const Elements& input = inputs[static_cast<std::size_t>(mpi.rank())];
  Elements output(input.dtype(), input.count());
  Request request;
  request.name = std::to_string(input.count());
  request.dtype = reduction.dtype;
  request.shape = {static_cast<std::int64_t>(input.count())};
  request.input = input.data();
  request.output = output.data();
  request.op = reduction.op;
  request.prescale = reduction.prescale;
  request.postscale = reduction.postscale;
  request.wire_dtype = reduction.wire_dtype;
  ronde::submit(std::move(request)).wait();
  CAPTURE(to_string(reduction.op), reduction.prescale, input.count());
  CHECK(first_difference(reduction, inputs, output) == "");
  CHECK(mpi.same_everywhere(output.bytes()));
  return output;
}

/// Each rank contributes one special value, to an element of its own and to one that all share.
void check_special_values(DataType dtype) {
  using Limits = std::numeric_limits<double>;
  const std::vector<double> specials = {Limits::quiet_NaN(), Limits::infinity(),
                                        -Limits::infinity(), -0.0, 0.0};
  with_each_backend([&](PlainMpi& mpi, const std::string& backend) {
    CAPTURE(backend);
    const auto ranks = static_cast<std::size_t>(mpi.size());
    const std::size_t count = (ranks + 1) * specials.size();
    for (const ReduceOp op : kElementwiseOps) {
      std::vector<Elements> inputs = make_inputs(dtype, op, count, mpi.size(), 3);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        for (std::size_t i = 0; i < specials.size(); ++i) {
          inputs[rank].set_number(i * (ranks + 1) + rank, specials[i]);
          inputs[rank].set_number(i * (ranks + 1) + ranks, specials[(i + rank) % specials.size()]);
        }
      }
      check_allreduce(mpi, {.dtype = dtype, .op = op, .ranks = mpi.size()}, inputs);
    }
  });
}

/// What a part moves for an allreduce of 30,000 f32, which are 120,000 bytes.
std::uint64_t moved_bytes(PlainMpi& mpi, const std::string& part, const std::string& name,
                          std::optional<DataType> wire_dtype) {
  const std::vector<Elements> inputs =
      make_inputs(DataType::F32, ReduceOp::Sum, 30'000, mpi.size(), 4);
  const std::uint64_t before = counter_of(default_runtime(), part, name);
  check_allreduce(mpi, {.ranks = mpi.size(), .wire_dtype = wire_dtype}, inputs);
  return counter_of(default_runtime(), part, name) - before;
}

TEST_CASE("elements that are sent as halves are half as many bytes", "[n2]") {
  with_each_backend([](PlainMpi& mpi, const std::string& backend) {
    const std::string moved = backend == "shm" ? "staged_bytes" : "packed_bytes";
    for (const auto& [part, name] :
         {std::pair<std::string, std::string>("execution", "bytes"), std::pair(backend, moved)}) {
      const std::uint64_t plain = moved_bytes(mpi, part, name, {});
      CAPTURE(part, name, plain);
      CHECK(plain > 0);
      CHECK(moved_bytes(mpi, part, name, DataType::F16) * 2 == plain);
      CHECK(moved_bytes(mpi, part, name, DataType::BF16) * 2 == plain);
    }
    CHECK(moved_bytes(mpi, "execution", "uncompressed_bytes", DataType::F16) == 120'000);
    if (backend != "mpi") return;
    // Received: this rank's part of every rank, and every rank's part of the result.
    const std::uint64_t received = moved_bytes(mpi, backend, "payload_bytes", DataType::F16);
    CHECK(received <= 120'064);
    CHECK(received >= 119'936);
  });
}

/// Over all backends, and over hosts: not even there is anything added before it travels.
void check_adasum(DataType dtype, std::optional<DataType> wire_dtype) {
  std::optional<std::vector<Elements>> results;
  const auto check = [&](PlainMpi& mpi) {
    std::vector<Elements> more;
    for (const std::size_t count : {0, 1, 7, 513, 20'011}) {
      const std::vector<Elements> inputs =
          make_inputs(dtype, ReduceOp::Adasum, count, mpi.size(), count);
      for (const auto& [before, after] : {std::pair(1.0, 1.0), std::pair(0.3, 1.7)}) {
        more.push_back(check_allreduce(
            mpi, {dtype, ReduceOp::Adasum, before, after, mpi.size(), wire_dtype}, inputs));
      }
    }
    if (results) CHECK(*results == more);
    results = more;
  };
  with_each_backend([&](PlainMpi& mpi, const std::string& backend) {
    CAPTURE(backend);
    check(mpi);
  });
  const int size = PlainMpi::instance().size();
  if (size > 2) with_hosts(std::string("aabb").substr(0, std::size_t(size)), check);
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const DataType dtype : {DataType::F16, DataType::BF16, DataType::F32, DataType::F64}) {
    const std::string type(to_string(dtype));
    add_case("adasum of " + type + " is the same bits on every backend", "", [dtype] {
      check_adasum(dtype, {});
      if (!is_half(dtype)) check_adasum(dtype, DataType::BF16);
    });
    add_case("NaN, infinities and -0 of " + type + " are reduced", "",
             [dtype] { check_special_values(dtype); });
  }
  return true;
}();

}  // namespace
}  // namespace ronde::test
