// SPDX-License-Identifier: Apache-2.0
// GPUs whose data goes through an MPI that takes their addresses: results, and what becomes of an
// MPI that says so and cannot.
#include <barrier>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backends/cuda/mpi/gpu_aware_operations.h"
#include "tests/support/fakes/fake_cuda_state.h"
#include "tests/support/gpu/gpu_aware_messages.h"
#include "tests/support/gpu/gpu_exercise.h"
#include "tests/support/gpu/gpu_ranks.h"
#include "tests/support/harness/captured_errors.h"
#include "tests/support/harness/sanitizers.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Fault = GpuAwareMessages::Fault;
using Body = std::function<void(Runtime& runtime, ProgramGpu& gpu)>;

constexpr std::size_t kCount = 50'000;
constexpr std::size_t kSmall = 64;  ///< bytes of a message of the trial

CudaOptions gpu_aware_options(const FakeMachine& machine, GpuAwareMessages& messages) {
  CudaOptions options = cuda_options_of(machine, kStaged);
  options.gpu_aware_mpi = messages.factory();
  options.wrap_mpi_calls = messages.wrap();
  return options;
}

/// The first collective finds the way. Broadcasts, which exercise_exchanges has, are staged.
Body after_first_sum(Exercise body) {
  return [body](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kCount);
    body(runtime, gpu);
    check(cuda_counter(runtime, "mpi_operations") > 1, "by MPI");
    check(cuda_counter(runtime, "mpi_sent_bytes") > 0, "bytes by MPI");
    check_counters(runtime, {{"ipc_operations", 0}});
    if (body == exercise_exchanges) return;
    check_counters(runtime, {{"staged_operations", 0}, {"staged_bytes", 0}});
  };
}

void run_directly(int ranks, Exercise body) {
  CAPTURE(ranks);
  FakeMachine machine;
  GpuAwareMessages messages(ranks);
  run_gpu_ranks(machine, ranks, 1, gpu_aware_options(machine, messages), after_first_sum(body));
  CHECK(messages.closed == ranks);
  CHECK(messages.aborted == 0);
  CHECK(messages.without_context == 0);
  CHECK(messages.wrapped == 0);
}

/// Sums on a GPU of a process set.
void sum_in_set(Runtime& runtime, ProgramGpu& gpu, const std::vector<int>& ranks) {
  const ProcessSet set = runtime.add_process_set(ranks);
  if (runtime.rank_in(set)) sum_on_gpu(runtime, gpu, kCount, set);
  runtime.remove_process_set(set);
}

}  // namespace

TEST_CASE("cuda direct: what goes through MPI gives the bits of the CPU") {
  const Exercise body =
      GENERATE(exercise_allreduces, exercise_wire_dtypes, exercise_exchanges, exercise_sizes);
  const int ranks = GENERATE(2, 3);
  if (kIsSanitized && ranks < 3) return;
  run_directly(ranks, body);
}

TEST_CASE("cuda direct: from the trial on, every call of MPI has the context of the GPU") {
  FakeMachine machine({.devices = 2});
  GpuAwareMessages messages(2);
  std::barrier together(2);
  run_gpu_ranks(machine, 2, 2, gpu_aware_options(machine, messages),
                [&](Runtime& runtime, ProgramGpu& gpu) {
                  const auto context_of_call = [&] {
                    cuda::ContextHandle seen = nullptr;
                    std::thread([&] {
                      messages.call([&] {
                        if (!fake::contexts().empty()) seen = fake::contexts().back();
                      });
                    }).join();
                    return seen;
                  };
                  check(context_of_call() == nullptr, "none before the first collective");
                  together.arrive_and_wait();
                  sum_on_gpu(runtime, gpu, kCount);
                  together.arrive_and_wait();
                  check(messages.wrapped == 2, "both ranks see to it");
                  check(context_of_call() != nullptr, "any call of any thread");
                  together.arrive_and_wait();
                });
  CHECK(messages.wrapped == 0);
  // Those of the test before the first collective, one a rank.
  CHECK(messages.without_context == 2);
}

TEST_CASE(
    "cuda direct: a GPU whose context cannot be had fails the call of MPI, unless the process "
    "ends") {
  FakeMachine machine;
  GpuAwareMessages messages(2);
  std::barrier together(2);
  run_gpu_ranks(
      machine, 2, 1, gpu_aware_options(machine, messages), [&](Runtime& runtime, ProgramGpu& gpu) {
        const auto fail_contexts = [&](cuda::Result result, int times) {
          together.arrive_and_wait();
          if (runtime.topology().rank == 0) machine.cuda.fail("cuCtxPushCurrent_v2", result, times);
          together.arrive_and_wait();
        };
        sum_on_gpu(runtime, gpu, kCount);
        fail_contexts(cuda::kInvalidValue, 1'000'000);
        check_contains(text_of<Error>([&] { messages.call([] {}); }), "using the context of GPU 0");
        // As the process ends, MPI is there for a while after the driver.
        fail_contexts(cuda::kDeinitialized, 1'000'000);
        bool is_made = false;
        messages.call([&] { is_made = true; });
        check(is_made, "without the driver");
        fail_contexts(cuda::kSuccess, 0);
      });
}

TEST_CASE("cuda direct: ranks on several hosts need not ask for CUDA IPC to go through MPI") {
  const std::vector<int> host_of = GENERATE(std::vector<int>{0, 1}, std::vector<int>{0, 0, 1});
  const CapturedErrors errors;
  const int size = static_cast<int>(host_of.size());
  FakeMachine machine;
  GpuAwareMessages messages(size);
  CudaOptions options = gpu_aware_options(machine, messages);
  options.ipc = true;
  const inproc::Group group(host_of);
  run_ranks(size, [&](int rank) {
    ProgramGpu gpu(machine.cuda.api(), 0);
    Runtime runtime(gpu_options_of(group, rank, options, "inproc"));
    after_first_sum(exercise_sizes)(runtime, gpu);
    runtime.shutdown();
  });
  CHECK(errors.text().empty());
  CHECK(machine.cuda.calls("cuIpcGetMemHandle") == 0);
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

TEST_CASE("cuda direct: 65 ranks on a host are too many for CUDA IPC, but not for MPI") {
  if (kIsSanitized) return;  // nothing but many threads
  constexpr int kRanks = 65;
  FakeMachine machine;
  GpuAwareMessages messages(kRanks);
  CudaOptions options = gpu_aware_options(machine, messages);
  options.ipc = true;
  options.fusion_bytes = 1 << 20;
  run_gpu_ranks(machine, kRanks, 1, options, [](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kCount);
    check_counters(runtime, {{"mpi_operations", 1}});
  });
  CHECK(machine.cuda.calls("cuIpcGetMemHandle") == 0);
}

TEST_CASE(
    "cuda direct: CUDA IPC goes before MPI, and where it fails one line says where all goes") {
  struct Row {
    bool ipc_works;
    bool has_mpi;
    Fault fault;  ///< of MPI
    const char* counter;
    std::vector<std::string> words;
  };
  const Row row = GENERATE(
      Row{true, true, Fault::None, "ipc_operations", {}},
      Row{false,
          true,
          Fault::None,
          "mpi_operations",
          {"is left to MPI, and staged through host memory where MPI does not serve it: rank 0: "}},
      Row{false, false, Fault::None, "staged_operations", {"through host memory: rank 0: "}},
      Row{false,
          true,
          Fault::Lost,
          "staged_operations",
          {"is staged through host memory: rank 0: ",
           "; the MPI library says that it takes addresses of GPUs, but a trial failed"}});
  const CapturedErrors errors;
  FakeMachine machine({.mappings_show_memory = row.ipc_works});
  GpuAwareMessages messages(2);
  messages.faulty_rank = 1;
  messages.fault = row.fault;
  CudaOptions options = gpu_aware_options(machine, messages);
  options.ipc = true;
  if (!row.has_mpi) options.gpu_aware_mpi = {};
  run_gpu_ranks(machine, 2, 1, options, [&](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kCount);
    for (const char* const name : {"ipc_operations", "mpi_operations", "staged_operations"}) {
      check_counters(runtime, {{name, std::string(name) == row.counter ? 1 : 0}});
    }
    // They do not tell again what was in the way of all ranks.
    for (int round = 0; !row.has_mpi && round < 2; ++round) sum_in_set(runtime, gpu, {0, 1});
  });
  CHECK((messages.sent > 0) == (!row.ipc_works && row.has_mpi));
  const std::string text = errors.text();
  CHECK(occurrences(text, "\n") == (row.ipc_works ? 0 : 1));
  if (!row.ipc_works) CHECK_THAT(text, Catch::Contains("CUDA IPC cannot be used, and what is on "));
  for (const std::string& words : row.words) CHECK_THAT(text, Catch::Contains(words));
  CHECK(occurrences(text, "left to MPI") == occurrences(row.counter, "mpi"));
}

TEST_CASE("cuda direct: where the MPI of one rank says no, all stage, and nothing is said of it") {
  const CapturedErrors errors;
  FakeMachine machine;
  GpuAwareMessages messages(3);
  const inproc::Group group(3);
  run_ranks(3, [&](int rank) {
    CudaOptions options = gpu_aware_options(machine, messages);
    if (rank == 1) options.gpu_aware_mpi = messages.factory("the MPI library says no");
    ProgramGpu gpu(machine.cuda.api(), 0);
    Runtime runtime(gpu_options_of(group, rank, options));
    sum_on_gpu(runtime, gpu, kCount);
    check_counters(runtime, {{"staged_operations", 1}, {"mpi_operations", 0}});
    runtime.shutdown();
  });
  CHECK(errors.text().empty());
  CHECK(messages.made == 0);
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

TEST_CASE("cuda direct: a process set stages, unless what is made serves those too") {
  FakeMachine machine;
  GpuAwareMessages messages(3);
  messages.serves_sets = GENERATE(false, true);
  run_gpu_ranks(machine, 3, 1, gpu_aware_options(machine, messages),
                [&](Runtime& runtime, ProgramGpu& gpu) {
                  sum_on_gpu(runtime, gpu, kCount);
                  for (int round = 0; round < 2; ++round) sum_in_set(runtime, gpu, {0, 2});
                  sum_on_gpu(runtime, gpu, kCount);
                  check_counters(runtime, {{"mpi_operations", 2}});  // those of all ranks
                });
  CHECK(messages.made == (messages.serves_sets ? 7 : 3));
  CHECK(messages.closed == messages.made);
}

TEST_CASE("cuda direct: ranks for whose parts the fusion buffer has no room do not use MPI") {
  constexpr std::size_t kMost = 256;  // 8 KiB in two halves, 16 bytes of each rank
  CudaOptions options;
  options.fusion_bytes = 1;
  options.one_shot_bytes = 0;
  CHECK(cuda::GpuAwareOperations::most_ranks(options) == kMost);
  int made = 0;
  BackendFactory factory;
  factory.create = [&made](BackendContext&) {
    ++made;
    return std::unique_ptr<Backend>();
  };
  Topology topology;
  BackendContext context;
  context.topology = &topology;
  context.exchange = [](std::string_view) { return std::vector<std::string>(); };
  for (const int size : {256, 257}) {
    topology.size = size;
    static_cast<void>(cuda::make_direct_messages(factory, kMost, context));
    CHECK(made == 1);
  }
}

TEST_CASE("cuda direct: a single rank has no use for MPI") {
  FakeMachine machine;
  GpuAwareMessages messages(1);
  run_gpu_ranks(machine, 1, 1, gpu_aware_options(machine, messages),
                [](Runtime& runtime, ProgramGpu& gpu) { sum_on_gpu(runtime, gpu, kCount); });
  CHECK(messages.made == 0);
}

namespace {

struct Failing {
  Fault fault;
  bool of_sends;
  std::size_t of_bytes;
  bool hangs;  ///< MPI may still use memory
  const char* text;
};

const Failing kFailing[] = {
    {Fault::Lost, false, kSmall, false,
     "rank 1: a message of 64 bytes from the GPU of rank 0 arrived with wrong content"},
    {Fault::Lost, false, 1 << 20, false,
     "rank 1: a message of 1048576 bytes from the GPU of rank 0 arrived with wrong content"},
    {Fault::NotBegun, true, 0, true, "MPI_Isend failed with code 75"},
    {Fault::NotBegun, false, 0, true, "MPI_Irecv failed with code 75"},
    {Fault::Fails, true, 0, true, "MPI_Test failed with code 75"},
    {Fault::Fails, false, 0, true, "MPI_Test failed with code 75"},
    {Fault::Hangs, true, 0, true, "messages of the trial do not arrive"},
    {Fault::Hangs, false, kSmall, true, "messages of the trial do not arrive"},
};

}  // namespace

TEST_CASE("cuda direct: an MPI that fails in the trial is told in one line, and all is staged") {
  const Failing failing = GENERATE(from_range(std::begin(kFailing), std::end(kFailing)));
  CAPTURE(failing.of_sends, failing.text);
  const CapturedErrors errors;
  FakeMachine machine;
  GpuAwareMessages messages(2);
  messages.faulty_rank = 1;
  messages.fault = failing.fault;
  messages.of_sends = failing.of_sends;
  messages.of_bytes = failing.of_bytes;
  CudaOptions options = gpu_aware_options(machine, messages);
  // Of the other rank, where this one's messages fail at once.
  if (failing.hangs) options.ipc_patience = std::chrono::milliseconds(100);
  run_gpu_ranks_unchecked(
      machine, 2, 1, options, [&](Runtime& runtime, ProgramGpu& gpu, const Kill&) {
        sum_on_gpu(runtime, gpu, kCount);
        const int begun = messages.sent + messages.received;
        for (int step = 0; step < 3; ++step) sum_on_gpu(runtime, gpu, kCount);
        exercise_messages(runtime, gpu);
        check(messages.sent + messages.received == begun, "MPI is not asked again");
        check(cuda_counter(runtime, "staged_operations") > 4, "all staged");
        check_counters(runtime, {{"mpi_operations", 0}});
        runtime.shutdown();
      });
  const std::string text = errors.text();
  CHECK_THAT(text,
             Catch::Contains("[ronde rank 0] warning: the MPI library says that it takes addresses "
                             "of GPUs, but a trial failed, and what is on GPUs is staged") &&
                 Catch::Contains(failing.text) &&
                 Catch::EndsWith(failing.hangs ? "set RONDE_GPU_AWARE_MPI=0 for the next one\n"
                                               : "RONDE_GPU_AWARE_MPI=0 spares the trial\n"));
  CHECK((text.find("is not finalised") != std::string::npos) == failing.hangs);
  CHECK(occurrences(text, "\n") == 1);
  CHECK(messages.closed == (failing.hangs ? 0 : 2));
  CHECK(messages.aborted == (failing.hangs ? 2 : 0));
  // For as long as the process lives, where MPI may go on with messages.
  CHECK((messages.wrapped > 0) == failing.hangs);
  CHECK(messages.without_context == 0);
  // What MPI may still write to stays.
  CHECK((machine.cuda.live().allocations > 0) == failing.hangs);
}

TEST_CASE("cuda direct: a rank without memory for the trial has all of them stage") {
  const CapturedErrors errors;
  FakeMachine machine({.devices = 2});
  GpuAwareMessages messages(2);
  run_gpu_ranks(machine, 2, 2, gpu_aware_options(machine, messages),
                [&](Runtime& runtime, ProgramGpu& gpu) {
                  GpuSum sum(runtime, gpu, kCount);
                  // Behind that of the fusion buffer, which is not yet made: it is the first.
                  if (runtime.topology().rank == 1) {
                    machine.cuda.fail_on(1, "cuMemAlloc_v2", cuda::kOutOfMemory);
                  }
                  sum.check_result(sum.start());
                  check_counters(runtime, {{"staged_operations", 1}});
                });
  CHECK_THAT(errors.text(), Catch::Contains("staged through host memory") &&
                                Catch::Contains("rank 1: ") && Catch::Contains("cuMemAlloc_v2"));
  CHECK(messages.sent == 0);
  CHECK(messages.closed == 2);
}

TEST_CASE("cuda direct: messages that fail later, or whose rank leaves, end the group") {
  // The rank of messages that hang leaves.
  const Fault fault = GENERATE(Fault::NotBegun, Fault::Fails, Fault::Hangs);
  FakeMachine machine;
  GpuAwareMessages messages(3);
  messages.faulty_rank = 1;
  messages.of_sends = GENERATE(true, false);
  std::barrier together(3);
  run_gpu_ranks_unchecked(machine, 3, 1, gpu_aware_options(machine, messages),
                          [&](Runtime& runtime, ProgramGpu& gpu, const Kill&) {
                            sum_on_gpu(runtime, gpu, kCount);
                            together.arrive_and_wait();
                            messages.fault = fault;
                            std::weak_ptr<void> memory;
                            const Work work = start_owned(runtime, gpu, kCount, memory);
                            if (fault == Fault::Hangs) {
                              while (cuda_counter(runtime, "mpi_operations") < 2)
                                std::this_thread::yield();
                              together.arrive_and_wait();
                              if (runtime.topology().rank == 1) return;
                            }
                            const Death death = death_of([&] { work.wait(); });
                            check(death.rank == 1, "rank 1 is to blame: " + death.text);
                            const bool is_told = fault != Fault::Hangs;
                            if (is_told)
                              check_contains(death.text, "failed with code 75: a bad address");
                            // MPI was never given the program's memory.
                            check(memory.expired(), "the memory is handed back");
                          });
  if (fault != Fault::Hangs) CHECK(messages.aborted == 3);
  CHECK(messages.closed == 0);
  // The fusion buffer, to which MPI may still write, is kept.
  CHECK(machine.cuda.live().allocations > 0);
}
