// SPDX-License-Identifier: Apache-2.0
// GPUs of several hosts: by an NCCL that is a fake within each, through host memory between them.
#include "nccl_hosts.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "gpu_exercise.h"
#include "nccl_jobs.h"

namespace {

using namespace ronde;
using namespace ronde::test;

using HostOf = std::vector<int>;

std::uint64_t counter(const Runtime& runtime, const std::string& name) {
  return counter_of(runtime, "nccl", name);
}

/// What there is of the counter on all ranks, equally.
void check_counter(const Runtime& runtime, const std::string& name, std::uint64_t expected) {
  check(counter(runtime, name) == expected, name + " is " + std::to_string(counter(runtime, name)) +
                                                ", not " + std::to_string(expected));
}

/// All jobs of which there are many, by hosts of these ranks.
void check_all(const HostOf& host_of, std::size_t every, const FakeNccl::Options& nccl = {},
               unsigned disorder = 0) {
  NcclHosts hosts(host_of, nccl, disorder);
  const std::vector<Job> jobs = chosen(all_jobs(Collective::Allreduce, hosts.size()), every);
  hosts.run([&](int rank, Runtime& runtime) {
    const bool has_order = runtime.topology().local_size == 2;
    ProgramGpu gpu = hosts.gpu(rank);
    check_jobs(jobs, gpu, runtime, true, has_order);
    check_jobs(chosen(jobs, 7), gpu, runtime, false, has_order);
    check(counter(runtime, "across_hosts") > 0, "hosts were crossed");
    check(counter(runtime, "staged_bytes") > 0, "through host memory");
    check(counter(runtime, "chunks_in_order") > 0, "some are reduced by the ranks");
    check(counter(runtime, "packed_chunks") > 0, "some are packed");
  });
  CHECK(hosts.machine.nccl.calls("ncclAllReduce") == 0);
  CHECK(hosts.machine.warnings().empty());
}

}  // namespace

TEST_CASE("nccl hosts: with two ranks each they give the bits of the CPU's backend for hosts") {
  const auto host_of = GENERATE(HostOf{0, 0, 1, 1}, HostOf{0, 1, 1, 0}, HostOf{0, 0, 1, 1, 2, 2},
                                HostOf{2, 0, 1, 0, 1, 2});
  check_all(host_of, 9);
}

TEST_CASE("nccl hosts: sums of three ranks each are within the tolerance, the rest has the bits") {
  check_all(GENERATE(HostOf{0, 0, 0, 1, 1, 1}, HostOf{0, 1, 0, 1, 0, 1}), 7);
}

TEST_CASE("nccl hosts: what is alone, even and not scaled before is reduced where it is") {
  NcclHosts hosts({0, 0, 1, 1});
  std::vector<Job> jobs;
  for (const Job& job : all_jobs(Collective::Allreduce, hosts.size())) {
    if (job.count == 64 && job.prescale == 1) jobs.push_back(job);
  }
  hosts.run([&](int rank, Runtime& runtime) {
    ProgramGpu gpu = hosts.gpu(rank);
    check_jobs(jobs, gpu, runtime, false, true);
    check(counter(runtime, "direct_chunks") > 0, "integers, sums and products of f32 and f64");
  });
}

TEST_CASE("nccl hosts: whatever order streams and events leave, results are the same") {
  check_all({0, 0, 1, 1}, 11, {}, GENERATE(1U, 2U, 3U));
  check_all({0, 0, 1, 1}, 11, {.looks = 0}, 4U);
}

TEST_CASE("nccl hosts: all dtypes, ops, scales and sizes, alone, fused and in place") {
  const auto body = GENERATE(exercise_allreduces, exercise_wire_dtypes, exercise_sizes);
  NcclHosts hosts({0, 1, 1, 0});
  hosts.run([&](int rank, Runtime& runtime) {
    ProgramGpu gpu = hosts.gpu(rank);
    body(runtime, gpu);
  });
  CHECK(hosts.machine.nccl.calls("ncclAllReduce") == 0);
}

TEST_CASE("nccl hosts: each rank copies its share alone, and what is even is not packed") {
  NcclHosts hosts({0, 0, 1, 1});
  hosts.machine.options.fusion_bytes = 4096;
  hosts.run([&](int rank, Runtime& runtime) {
    ProgramGpu gpu = hosts.gpu(rank);
    sum_on_gpu(runtime, gpu, 3000);  // chunks of 1024 elements
    check_counter(runtime, "across_hosts", 3);
    check_counter(runtime, "direct_chunks", 3);
    check_counter(runtime, "staged_bytes", 3000 * 4 / 2);
    sum_on_gpu(runtime, gpu, 1025);
    check_counter(runtime, "across_hosts", 5);
    check_counter(runtime, "packed_chunks", 1);  // of one element, which is the first rank's
    check_counter(runtime, "staged_bytes", 6000 + 2048 + (rank % 2 == 0 ? 4 : 0));
  });
}

TEST_CASE("nccl hosts: only what is larger than the limit crosses hosts so, and only if it is on") {
  const bool is_on = GENERATE(true, false);
  NcclHosts hosts({0, 0, 1, 1});
  hosts.machine.options.hierarchical = is_on;
  hosts.machine.options.hierarchical_above_bytes = 4000;
  hosts.machine.options.streams = 2;
  hosts.run([&](int rank, Runtime& runtime) {
    ProgramGpu gpu = hosts.gpu(rank);
    for (const std::size_t count : {1000, 1001, 1000, 2000}) sum_on_gpu(runtime, gpu, count);
    check_counter(runtime, "across_hosts", is_on ? 2 + 4 : 0);  // chunks of 512 elements
    check_counter(runtime, "communicators", is_on ? 4 : 2);
  });
  CHECK((hosts.machine.nccl.calls("ncclReduceScatter") > 0) == is_on);
  CHECK(hosts.machine.warnings().empty());
}

TEST_CASE("nccl hosts: where hosts are not alike NCCL moves everything, and one line says why") {
  struct Row {
    HostOf host_of;
    std::size_t most_inputs;
    std::string why;
  };
  const Row rows[] = {
      {{0, 0}, 64, "all ranks are on one host"},
      {{0, 1}, 64, "the hosts have a single rank each, or different numbers of them"},
      {{0, 0, 1}, 64, "the hosts have a single rank each, or different numbers of them"},
      {{0, 1, 2, 0}, 64, "the hosts have a single rank each, or different numbers of them"},
      {{0, 0, 0, 1, 1, 1}, 2, "there are more than 2 ranks on a host"}};
  for (const Row& row : rows) {
    NcclHosts hosts(row.host_of);
    hosts.machine.options.most_inputs = row.most_inputs;
    hosts.run([&](int rank, Runtime& runtime) {
      ProgramGpu gpu = hosts.gpu(rank);
      for (int step = 0; step < 3; ++step) sum_on_gpu(runtime, gpu, 3000);
      check_counter(runtime, "across_hosts", 0);
      check_counter(runtime, "communicators", 1);
    });
    CHECK(hosts.machine.nccl.calls("ncclReduceScatter") == 0);
    CHECK(hosts.machine.warnings() ==
          std::vector<std::string>{
              "RONDE_NCCL_HIERARCHICAL=1 has no effect, and NCCL moves everything: " + row.why});
  }
}

TEST_CASE("nccl hosts: process sets cross hosts where they have as many ranks on each") {
  NcclHosts hosts({0, 0, 0, 1, 1, 1});
  hosts.run([&](int rank, Runtime& runtime) {
    ProgramGpu gpu = hosts.gpu(rank);
    const std::vector<std::vector<int>> sets = {{0, 1, 2}, {0, 3}, {0, 1, 4, 5}, {2, 3, 4}};
    for (const std::vector<int>& ranks : sets) {
      const ProcessSet set = runtime.add_process_set(ranks);
      if (!runtime.rank_in(set)) continue;
      GpuSum sum(runtime, gpu, 3000);
      Request request = sum.request();
      request.set = set;
      runtime.submit(std::move(request)).wait();
      float expected = 0;
      for (const int each : ranks) expected += static_cast<float>(each + 1);
      check(sum.read() == std::vector<float>(3000, expected), "the sum of a set");
    }
    sum_on_gpu(runtime, gpu, 3000);
  });
  // Of the last set, and of all.
  CHECK(hosts.machine.nccl.calls("ncclReduceScatter") > 0);
  CHECK(hosts.machine.warnings().empty());
}

TEST_CASE("nccl hosts: streams take turns, with the buffer registered by both communicators") {
  const bool registers = GENERATE(true, false);
  NcclHosts hosts({0, 1, 0, 1});
  hosts.machine.options.streams = 3;
  hosts.machine.options.registration_cache = registers;
  // So little that nothing that is not in use would be kept.
  hosts.machine.options.registration_cache_bytes = 1;
  hosts.machine.options.hierarchical_above_bytes = 4000;
  hosts.run([&](int rank, Runtime& runtime) {
    ProgramGpu gpu = hosts.gpu(rank);
    for (int step = 0; step < 24; ++step) {
      // By turns within hosts and over all ranks, on each stream; packed.
      const std::size_t count = (step / 3) % 2 == 0 ? 1501 : 501;
      GpuSum sum(runtime, gpu, count);
      Request request = sum.request();
      request.prescale = 2.0;
      request.postscale = 0.5;
      sum.check_result(runtime.submit(std::move(request)));
    }
    check_counter(runtime, "communicators", 6);
    check_counter(runtime, "registration_misses", registers ? 6 : 0);
  });
  CHECK(hosts.machine.nccl.calls("ncclCommRegister") == (registers ? 24 : 0));
}
