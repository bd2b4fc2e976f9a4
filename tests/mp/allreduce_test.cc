// SPDX-License-Identifier: Apache-2.0
// Every element type and op, over shared memory and over MPI, against the inputs gathered by plain
// MPI and reduced in double precision (floats) or 64-bit integers; and the two against each other.
#include <map>
#include <string>
#include <vector>

#include "case_table.h"
#include "oracle.h"
#include "plain_mpi.h"
#include "ronde/ronde.h"

namespace ronde::test {
namespace {

// Nothing, one, odd, about one fusion buffer of 4 KiB, and many buffers for every type.
constexpr std::size_t kCounts[] = {0, 1, 7, 513, 20011};

/// One tensor on its way.
struct Job {
  Reduction reduction;
  bool in_place;
  std::string name;
  Elements input;
  Elements output;
  Work work;
};

Work submit(Job& job) {
  Request request;
  request.kind = Collective::Allreduce;
  request.name = job.name;
  request.dtype = job.reduction.dtype;
  request.shape = {static_cast<std::int64_t>(job.input.count())};
  if (job.in_place) job.output = job.input;
  request.input = job.in_place ? job.output.data() : job.input.data();
  request.output = job.output.data();
  request.op = job.reduction.op;
  request.prescale = job.reduction.prescale;
  request.postscale = job.reduction.postscale;
  return ronde::submit(std::move(request));
}

/// All sizes, in place and not, scaled and not: in flight together, so that they fuse.
std::vector<Job> make_jobs(DataType dtype, ReduceOp op, int ranks, int rank, std::uint64_t round) {
  std::vector<Job> jobs;
  const bool scales = dtype != DataType::Bool;
  const double prescale = is_floating(dtype) ? 0.3 : 0.5;
  const double postscale = is_floating(dtype) ? 1.7 : 0.25;
  for (const bool scaled : {false, true}) {
    if (scaled && !scales) continue;
    for (const bool in_place : {false, true}) {
      for (const std::size_t count : kCounts) {
        const Reduction reduction = {dtype, op, scaled ? prescale : 1.0, scaled ? postscale : 1.0,
                                     ranks};
        const std::string name =
            std::to_string(count) + (in_place ? " in place" : "") + (scaled ? " scaled" : "");
        const std::uint64_t seed = 100 * round + jobs.size();
        jobs.push_back({reduction, in_place, name, make_input(dtype, op, count, rank, seed),
                        Elements(dtype, count), Work()});
      }
    }
  }
  return jobs;
}

std::string difference(PlainMpi& mpi, const Job& job) {
  if (is_floating(job.reduction.dtype)) {
    return first_difference(job.reduction, mpi.gather(job.input.numbers()), job.output);
  }
  return first_difference(job.reduction, mpi.gather(job.input.integers()), job.output);
}

/// Whether results do not depend on the order in which ranks are combined.
bool is_exact(const Reduction& reduction) {
  const bool orders = reduction.op == ReduceOp::Min || reduction.op == ReduceOp::Max;
  return !is_floating(reduction.dtype) || orders || reduction.ranks <= 2;
}

/// The results of all rounds.
std::vector<Elements> check_allreduce(PlainMpi& mpi, DataType dtype, ReduceOp op) {
  std::vector<Elements> results;
  // The second round runs from the response cache.
  for (const std::uint64_t round : {0U, 1U}) {
    std::vector<Job> jobs = make_jobs(dtype, op, mpi.size(), mpi.rank(), round);
    for (Job& job : jobs) job.work = submit(job);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      Job& job = jobs[i];
      CAPTURE(round, job.name);
      job.work.wait();
      CHECK(difference(mpi, job) == "");
      CHECK(mpi.same_everywhere(job.output.bytes()));
      results.push_back(job.output);
      if (job.in_place) continue;
      const std::uint64_t seed = 100 * round + i;
      CHECK(job.input == make_input(dtype, op, job.input.count(), mpi.rank(), seed));
    }
  }
  return results;
}

void check_allreduces(DataType dtype) {
  std::map<ReduceOp, std::vector<Elements>> of_first_backend;
  with_each_backend([&](PlainMpi& mpi, const std::string& backend) {
    for (const ReduceOp op : kAllReduceOps) {
      if (dtype == DataType::Bool && op == ReduceOp::Average) continue;
      CAPTURE(backend, to_string(op));
      const std::vector<Elements> results = check_allreduce(mpi, dtype, op);
      const auto [first, is_first] = of_first_backend.emplace(op, results);
      if (is_exact({dtype, op, 1.0, 1.0, mpi.size()})) CHECK(first->second == results);
    }
  });
}

/// A few types on each placement; all of them are for tests/hierarchical.
void check_hosts(const std::string& hosts, const std::vector<DataType>& dtypes) {
  with_hosts(hosts, [&](PlainMpi& mpi) {
    for (const DataType dtype : dtypes) {
      for (const ReduceOp op : kAllReduceOps) {
        CAPTURE(hosts, to_string(dtype), to_string(op));
        check_allreduce(mpi, dtype, op);
      }
    }
  });
}

void check_refused_average_of_bools() {
  with_group([](PlainMpi& mpi) {
    Job job{{DataType::Bool, ReduceOp::Average, 1.0, 1.0, mpi.size()},
            false,
            "flags",
            make_input(DataType::Bool, ReduceOp::Average, 5, mpi.rank(), 1),
            Elements(DataType::Bool, 5),
            Work()};
    const Work work = submit(job);
    CHECK_THROWS_AS(work.wait(), UsageError);
    job.reduction.op = ReduceOp::Sum;
    submit(job).wait();
    CHECK(difference(mpi, job) == "");
  });
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const DataType dtype : kAllDataTypes) {
    add_case("allreduce of " + std::string(to_string(dtype)) + " equals plain MPI", "[allreduce]",
             [dtype] { check_allreduces(dtype); });
  }
  add_case("allreduces over two hosts, of which one has a rank more, equal plain MPI",
           "[allreduce][n3]", [] {
             check_hosts("aba", {DataType::F32, DataType::BF16});
           });
  add_case("allreduces over two and three hosts equal plain MPI", "[allreduce][n4]", [] {
    check_hosts("aabb", {DataType::F32, DataType::F16, DataType::I32});
    check_hosts("abca", {DataType::F64, DataType::U8});
  });
  add_case("allreduce average of bool is refused and the job goes on", "[allreduce]",
           check_refused_average_of_bools);
  return true;
}();

}  // namespace
}  // namespace ronde::test
