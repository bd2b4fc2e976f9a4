// SPDX-License-Identifier: Apache-2.0
// Operations over an NCCL that is a fake, beside the same over shared memory, whose bits they have
// wherever the design says so; and of several hosts, with NCCL within each and host memory between.
#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "gpu_exercise.h"
#include "nccl_ranks.h"
#include "tests/support/case_table.h"
#include "tests/support/sanitizers.h"

namespace {

using namespace ronde;
using namespace ronde::test;

struct SetUp {
  int ranks;
  std::size_t most_inputs = NcclOptions().most_inputs;  ///< of a kernel
  int looks = FakeNccl::Options().looks;
};

/// As usual; with kernels that take fewer inputs than there are ranks, which reduce in rounds; and
/// with calls that end at once, so that nobody needs to ask.
void run_exercise(Exercise exercise) {
  const SetUp set_up =
      GENERATE(SetUp{1}, SetUp{2}, SetUp{3}, SetUp{3, 2}, SetUp{4, 3}, SetUp{2, 64, 0});
  CAPTURE(set_up.ranks, set_up.most_inputs, set_up.looks);
  if (kIsSanitized && set_up.ranks < 3 && set_up.looks > 0) return;
  NcclRanks machine(set_up.ranks, {.looks = set_up.looks});
  machine.options.most_inputs = set_up.most_inputs;
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    exercise(runtime, gpu);
    if (exercise != exercise_allreduces || set_up.ranks != 2) return;
    for (const char* const name : {"chunks_in_order", "packed_chunks", "direct_chunks"}) {
      check(nccl_counter(runtime, name) > 0, name);
    }
  });
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const auto& [what, exercise] : kExercises) {
    add_case("nccl: " + what + " have the bits of shared memory where order allows it", "",
             [exercise = exercise] { run_exercise(exercise); });
  }
  return true;
}();

TEST_CASE("nccl with one rank carries out each collective, and is no mere copy") {
  NcclRanks machine(1);
  machine.run(exercise_nccl_alone);
}

TEST_CASE("nccl averages halves whose sum is beyond them") {
  NcclRanks machine(2);
  machine.run([](Runtime& runtime, ProgramGpu& gpu) {
    const Bytes large = {std::byte{0x53}, std::byte{0x7b}};  // 60000 as f16
    const GpuTensor tensor(gpu, large);
    Request request;
    request.dtype = DataType::F16;
    request.shape = {1};
    request.op = ReduceOp::Average;
    gpu.place(request);
    request.input = request.output = tensor.data();
    runtime.run(std::move(request));
    check(tensor.read() == large, "the average of equal numbers is that number");
  });
}

TEST_CASE("nccl has one communicator for each stream and for each pair that sends") {
  const int ranks = GENERATE(2, 3);
  NcclRanks machine(ranks);
  machine.options.streams = 2;
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    exercise_messages(runtime, gpu);  // before any collective
    for (int step = 0; step < 5; ++step) sum_on_gpu(runtime, gpu, 700);
    exercise_messages(runtime, gpu);
    const auto pairs = static_cast<std::uint64_t>(ranks - 1);
    check_counters(runtime, {{"communicators", pairs + 2}}, "nccl");
  });
}

TEST_CASE("nccl messages of two ranks leave the turns of the others' collectives as they are") {
  NcclRanks machine(3);
  machine.options.streams = 3;
  machine.run([](Runtime& runtime, ProgramGpu& gpu) {
    const int rank = runtime.topology().rank;
    for (int step = 0; step < 7; ++step) {
      // Another number of messages for each rank.
      GpuSum values(runtime, gpu, 9);
      for (int i = 0; rank < 2 && i < step; ++i) runtime.run(values.message(1 - rank, rank == 0));
      if (rank < 2 && step > 0) values.check_values(1.0F, "what rank 0 has sent");
      sum_on_gpu(runtime, gpu, 100);
    }
  });
}

TEST_CASE("nccl serves the others where a rank has no memory for its result") {
  NcclRanks machine(3);
  machine.run(exercise_missing_results);
}

using HostOf = std::vector<int>;

/// Of the backend for GPUs.
void check_nccl(const Runtime& runtime, const Counters& expected) {
  check_counters(runtime, expected, "nccl");
}

/// Sums cross hosts, of which some are packed, and some reduced by the ranks.
void exercise_by_hosts(NcclHosts& machine, Exercise exercise) {
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    exercise(runtime, gpu);
    for (const char* const name : {"across_hosts", "staged_bytes", "chunks_in_order"}) {
      check(nccl_counter(runtime, name) > 0, name);
    }
    if (exercise == exercise_wire_dtypes) return;  // which the ranks reduce
    for (const char* const name : {"packed_chunks", "direct_chunks"}) {
      check(nccl_counter(runtime, name) > 0, name);
    }
  });
  CHECK(machine.cuda.calls("ncclAllReduce") == 0);
  CHECK(machine.warnings().empty());
}

TEST_CASE(
    "nccl hosts: results have the bits of the CPU's backend; sums of 3 ranks a host are close") {
  struct Row {
    HostOf host_of;
    Exercise exercise;
  };
  const Row row = GENERATE(
      Row{{0, 1, 1, 0}, exercise_allreduces}, Row{{0, 1, 1, 0}, exercise_wire_dtypes},
      Row{{0, 1, 1, 0}, exercise_sizes}, Row{{2, 0, 1, 0, 1, 2}, exercise_allreduces},
      // Sums of three ranks of a host are within the tolerance.
      Row{{0, 0, 0, 1, 1, 1}, exercise_allreduces}, Row{{0, 1, 0, 1, 0, 1}, exercise_allreduces});
  NcclHosts machine(row.host_of);
  exercise_by_hosts(machine, row.exercise);
}

TEST_CASE("nccl hosts: whatever order streams and events leave, results are the same") {
  const int seed = GENERATE(range(1, plain_or_sanitized(7, 2)));
  NcclHosts machine({0, 0, 1, 1}, {.looks = seed % 4 == 0 ? 0 : 2}, static_cast<unsigned>(seed));
  exercise_by_hosts(machine, exercise_sizes);
}

TEST_CASE("nccl hosts: each rank copies its share alone, and what is even is not packed") {
  NcclHosts machine({0, 0, 1, 1});
  machine.options.fusion_bytes = 4096;
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, 3000);  // chunks of 1024 elements
    check_nccl(runtime, {{"across_hosts", 3}, {"direct_chunks", 3}, {"staged_bytes", 6000}});
    sum_on_gpu(runtime, gpu, 1025);
    // The packed one has one element, which is the first rank's.
    const std::uint64_t of_element = runtime.topology().local_rank == 0 ? 4 : 0;
    check_nccl(
        runtime,
        {{"across_hosts", 5}, {"packed_chunks", 1}, {"staged_bytes", 6000 + 2048 + of_element}});
  });
}

TEST_CASE("nccl hosts: only what is larger than the limit crosses hosts so, and only if it is on") {
  const bool is_on = GENERATE(true, false);
  NcclHosts machine({0, 0, 1, 1});
  machine.options.hierarchical = is_on;
  machine.options.hierarchical_above_bytes = 4000;
  machine.options.streams = 2;
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    for (const std::size_t count : {1000, 1001, 1000, 2000}) sum_on_gpu(runtime, gpu, count);
    // Chunks of 512 elements.
    check_nccl(runtime, {{"across_hosts", is_on ? 2 + 4 : 0}, {"communicators", is_on ? 4 : 2}});
  });
  CHECK((machine.cuda.calls("ncclReduceScatter") > 0) == is_on);
  CHECK(machine.warnings().empty());
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
    NcclHosts machine(row.host_of);
    machine.options.most_inputs = row.most_inputs;
    machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
      for (int step = 0; step < 3; ++step) sum_on_gpu(runtime, gpu, 3000);
      check_nccl(runtime, {{"across_hosts", 0}, {"communicators", 1}});
    });
    CHECK(machine.cuda.calls("ncclReduceScatter") == 0);
    CHECK(machine.warnings() ==
          std::vector<std::string>{
              "RONDE_NCCL_HIERARCHICAL=1 has no effect, and NCCL moves everything: " + row.why});
  }
}

TEST_CASE("nccl hosts: process sets cross hosts where they have as many ranks on each") {
  NcclHosts machine({0, 0, 0, 1, 1, 1});
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    const std::vector<std::vector<int>> sets = {{0, 1, 2}, {0, 3}, {0, 1, 4, 5}, {2, 3, 4}};
    for (const std::vector<int>& ranks : sets) {
      const ProcessSet set = runtime.add_process_set(ranks);
      if (runtime.rank_in(set)) sum_on_gpu(runtime, gpu, 3000, set);
    }
    sum_on_gpu(runtime, gpu, 3000);
  });
  // Of the last set, and of all.
  CHECK(machine.cuda.calls("ncclReduceScatter") > 0);
  CHECK(machine.warnings().empty());
}

TEST_CASE("nccl hosts: streams take turns, with the buffer registered by both communicators") {
  const bool registers = GENERATE(true, false);
  NcclHosts machine({0, 1, 0, 1});
  machine.options.streams = 3;
  machine.options.registration_cache = registers;
  // So little that nothing that is not in use would be kept.
  machine.options.registration_cache_bytes = 1;
  machine.options.hierarchical_above_bytes = 4000;
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    for (int step = 0; step < 24; ++step) {
      // By turns within hosts and over all ranks, on each stream; packed.
      const std::size_t count = (step / 3) % 2 == 0 ? 1501 : 501;
      GpuSum sum(runtime, gpu, count);
      Request request = sum.request();
      request.prescale = 2.0;
      request.postscale = 0.5;
      sum.check_result(runtime.submit(std::move(request)));
    }
    check_nccl(runtime, {{"communicators", 6}, {"registration_misses", registers ? 6 : 0}});
  });
  CHECK(machine.cuda.calls("ncclCommRegister") == (registers ? 24 : 0));
}

}  // namespace
