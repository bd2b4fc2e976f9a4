// SPDX-License-Identifier: Apache-2.0
// Every element type and op, over shared memory and over MPI, against the inputs of all ranks
// reduced in double precision (floats) or 64-bit integers; and the two against each other. Of hosts
// there are random_programs_test.cc and ../oracle/mpi_cases_test.cc.
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "case_table.h"
#include "oracle.h"
#include "plain_mpi.h"
#include "ranks.h"
#include "ronde/ronde.h"

namespace ronde::test {
namespace {

// Nothing, one, odd, about one fusion buffer of 4 KiB, and many buffers for every type.
constexpr std::size_t kCounts[] = {0, 1, 7, 513, 20011};

/// One tensor on its way.
struct Job {
  Reduction reduction;
  bool in_place = false;
  std::size_t count = 0;
  std::uint64_t seed = 0;
  Elements input = make_input(reduction.dtype, reduction.op, count, ronde::rank(), seed);
  Elements output = in_place ? input : Elements(reduction.dtype, count);
  Work work = {};

  std::string name() const {
    return std::to_string(count) + (in_place ? " in place" : "") +
           (reduction.prescale == 1.0 ? "" : " scaled");
  }
};

void submit(Job& job) {
  Request request;
  request.kind = Collective::Allreduce;
  request.name = job.name();
  request.dtype = job.reduction.dtype;
  request.shape = {static_cast<std::int64_t>(job.count)};
  request.input = job.in_place ? job.output.data() : job.input.data();
  request.output = job.output.data();
  request.op = job.reduction.op;
  request.prescale = job.reduction.prescale;
  request.postscale = job.reduction.postscale;
  request.wire_dtype = job.reduction.wire_dtype;
  job.work = ronde::submit(std::move(request));
}

/// All sizes, in place and not, scaled and not: in flight together, so that they fuse.
std::vector<Job> make_jobs(const Reduction& what, std::uint64_t round) {
  std::vector<Job> jobs;
  for (const bool scaled : {false, true}) {
    if (scaled && what.dtype == DataType::Bool) continue;
    Reduction reduction = what;
    if (scaled) {
      reduction.prescale = is_floating(what.dtype) ? 0.3 : 0.5;
      reduction.postscale = is_floating(what.dtype) ? 1.7 : 0.25;
    }
    for (const bool in_place : {false, true}) {
      for (const std::size_t count : kCounts) {
        jobs.push_back({reduction, in_place, count, 100 * round + jobs.size()});
      }
    }
  }
  return jobs;
}

std::string difference(const Job& job) {
  const std::vector<Elements> inputs =
      make_inputs(job.reduction.dtype, job.reduction.op, job.count, ronde::size(), job.seed);
  const auto own = static_cast<std::size_t>(ronde::rank());
  if (!job.in_place && job.input != inputs[own]) return "the input was changed";
  return first_difference(job.reduction, inputs, job.output);
}

/// Whether results do not depend on the order in which ranks are combined.
bool is_exact(const Reduction& reduction) {
  const bool orders = reduction.op == ReduceOp::Min || reduction.op == ReduceOp::Max;
  return !is_floating(reduction.dtype) || orders || reduction.ranks <= 2 || reduction.wire_dtype ||
         reduction.op == ReduceOp::Adasum;
}

/// The results of all rounds, of what `reduction` says but for its scales.
std::vector<Elements> check_allreduce(PlainMpi& mpi, const Reduction& reduction) {
  std::vector<Elements> results;
  // The second round runs from the response cache.
  for (const std::uint64_t round : {0U, 1U}) {
    std::vector<Job> jobs = make_jobs(reduction, round);
    for (Job& job : jobs) submit(job);
    for (Job& job : jobs) {
      CAPTURE(round, job.name());
      job.work.wait();
      CHECK(difference(job) == "");
      CHECK(mpi.same_everywhere(job.output.bytes()));
      results.push_back(job.output);
    }
  }
  return results;
}

void check_allreduces(DataType dtype, std::optional<DataType> wire_dtype = {}) {
  std::map<ReduceOp, std::vector<Elements>> of_first_backend;
  with_each_backend([&](PlainMpi& mpi, const std::string& backend) {
    for (const ReduceOp op : kElementwiseOps) {
      if (dtype == DataType::Bool && op == ReduceOp::Average) continue;
      CAPTURE(backend, to_string(op));
      const Reduction reduction = {dtype, op, 1.0, 1.0, mpi.size(), wire_dtype};
      const std::vector<Elements> results = check_allreduce(mpi, reduction);
      const auto [first, is_first] = of_first_backend.emplace(op, results);
      if (is_exact(reduction)) CHECK(first->second == results);
    }
  });
}

/// Each rank contributes one special value, to an element of its own and to one that all share.
void check_special_values(DataType dtype) {
  using Limits = std::numeric_limits<double>;
  const std::vector<double> specials = {Limits::quiet_NaN(), Limits::infinity(),
                                        -Limits::infinity(), -0.0, 0.0};
  with_each_backend([&](PlainMpi& mpi, const std::string& backend) {
    const auto ranks = static_cast<std::size_t>(mpi.size());
    const std::size_t count = (ranks + 1) * specials.size();
    for (const ReduceOp op : kElementwiseOps) {
      Job job{{.dtype = dtype, .op = op, .ranks = mpi.size()}, false, count};
      std::vector<Elements> inputs = make_inputs(dtype, op, count, mpi.size(), job.seed);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        for (std::size_t i = 0; i < specials.size(); ++i) {
          inputs[rank].set_number(i * (ranks + 1) + rank, specials[i]);
          inputs[rank].set_number(i * (ranks + 1) + ranks, specials[(i + rank) % specials.size()]);
        }
      }
      job.input = inputs[static_cast<std::size_t>(mpi.rank())];
      submit(job);
      job.work.wait();
      CAPTURE(backend, to_string(op));
      CHECK(first_difference(job.reduction, inputs, job.output) == "");
      CHECK(mpi.same_everywhere(job.output.bytes()));
    }
  });
}

/// What a part moves for an allreduce of 30,000 f32, which are 120,000 bytes.
std::uint64_t moved_bytes(const std::string& part, const std::string& name,
                          std::optional<DataType> wire_dtype) {
  Job job{{.ranks = ronde::size(), .wire_dtype = wire_dtype}, false, 30'000};
  const std::uint64_t before = counter_of(default_runtime(), part, name);
  submit(job);
  job.work.wait();
  return counter_of(default_runtime(), part, name) - before;
}

void check_halved_bytes() {
  with_each_backend([](PlainMpi&, const std::string& backend) {
    const std::string moved = backend == "shm" ? "staged_bytes" : "packed_bytes";
    for (const auto& [part, name] :
         {std::pair<std::string, std::string>("execution", "bytes"), std::pair(backend, moved)}) {
      const std::uint64_t plain = moved_bytes(part, name, {});
      CAPTURE(part, name, plain);
      CHECK(plain > 0);
      CHECK(moved_bytes(part, name, DataType::F16) * 2 == plain);
      CHECK(moved_bytes(part, name, DataType::BF16) * 2 == plain);
    }
    CHECK(moved_bytes("execution", "uncompressed_bytes", DataType::F16) == 120'000);
    if (backend != "mpi") return;
    // Received: this rank's part of every rank, and every rank's part of the result.
    const std::uint64_t received = moved_bytes(backend, "payload_bytes", DataType::F16);
    CHECK(received <= 120'064);
    CHECK(received >= 119'936);
  });
}

/// Over all backends, and over hosts: not even there is anything added before it travels.
void check_adasum(DataType dtype, std::optional<DataType> wire_dtype) {
  std::optional<std::vector<Elements>> results;
  const auto check = [&](PlainMpi& mpi) {
    const auto more =
        check_allreduce(mpi, {dtype, ReduceOp::Adasum, 1.0, 1.0, mpi.size(), wire_dtype});
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
    add_case("adasum of " + std::string(to_string(dtype)) + " is the same bits on every backend",
             "[allreduce]", [dtype] {
               check_adasum(dtype, {});
               if (!is_half(dtype)) check_adasum(dtype, DataType::BF16);
             });
    add_case("NaN, infinities and -0 of " + std::string(to_string(dtype)) + " are reduced", "",
             [dtype] { check_special_values(dtype); });
  }
  for (const DataType dtype : kAllDataTypes) {
    add_case("allreduce of " + std::string(to_string(dtype)) + " is right on every backend",
             "[allreduce]", [dtype] { check_allreduces(dtype); });
  }
  for (const DataType dtype : {DataType::F32, DataType::F64}) {
    for (const DataType wire : {DataType::F16, DataType::BF16}) {
      add_case("allreduce of " + std::string(to_string(dtype)) + " as " +
                   std::string(to_string(wire)) + " is exact on every backend",
               "[allreduce][n2][n3]", [=] { check_allreduces(dtype, wire); });
    }
  }
  add_case("elements that travel as halves are half as many bytes", "[allreduce][n2]",
           check_halved_bytes);
  return true;
}();

}  // namespace
}  // namespace ronde::test
