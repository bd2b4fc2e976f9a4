// SPDX-License-Identifier: Apache-2.0
// GPUs whose data goes through an MPI that takes their addresses (RONDE_GPU_AWARE_MPI=1).
#include <barrier>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/gpu/gpu_aware_messages.h"
#include "tests/support/gpu/gpu_exercise.h"
#include "tests/support/gpu/gpu_ranks.h"
#include "tests/support/harness/captured_errors.h"
#include "tests/support/harness/sanitizers.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Fault = GpuAwareMessages::Fault;

constexpr std::size_t kCount = 50'000;

/// Ranks that share a GPU and have messages in its memory.
struct Job : CudaRanks {
  explicit Job(const std::vector<int>& host_of, const Way& way = kIpc,
               const FakeCuda::Options& gpu = {})
      : CudaRanks(host_of, way, gpu), messages(inproc::Group(host_of)) {
    options.gpu_aware_mpi = messages.factory();
    if (way.ipc) cpu_backend = "inproc";
  }
  /// On one host, without CUDA IPC.
  explicit Job(int ranks) : Job(std::vector<int>(static_cast<std::size_t>(ranks)), kStaged) {}

  void check_clean() const override {
    CHECK(messages.closed == messages.made);
    CHECK(messages.aborted == 0);
    CHECK(messages.without_context == 0);
    CudaRanks::check_clean();
  }

  GpuAwareMessages messages;
};

}  // namespace

TEST_CASE("cuda direct: what goes through MPI gives the bits of the CPU, on one host or several") {
  const auto body =
      GENERATE(exercise_allreduces, exercise_wire_dtypes, exercise_exchanges, exercise_sizes);
  const auto host_of = GENERATE(values<std::vector<int>>({{0, 0}, {0, 0, 0}, {0, 1}, {0, 0, 1}}));
  const bool is_one_host = host_of.back() == 0;
  if (!is_one_host && body != exercise_sizes) return;
  if (kIsSanitized && is_one_host && host_of.size() < 3) return;
  const CapturedErrors errors;
  Job job = is_one_host ? Job(static_cast<int>(host_of.size())) : Job(host_of);
  job.run([&](Runtime& runtime, ProgramGpu& gpu) {
    body(runtime, gpu);
    check(counter_of(runtime, "cuda", "mpi_operations") > 1, "by MPI");
    check(counter_of(runtime, "cuda", "mpi_sent_bytes") > 0, "bytes by MPI");
    check_counters(runtime, {{"ipc_operations", 0}});
    // Broadcasts are staged.
    if (body != exercise_exchanges) check_counters(runtime, {{"staged_operations", 0}});
  });
  CHECK(errors.text().empty());
  CHECK(job.cuda.calls("cuIpcGetMemHandle") == 0);  // not tried
}

TEST_CASE("cuda direct: MPI serves 65 ranks, too many for CUDA IPC, and buffers of a few bytes") {
  const bool are_many = GENERATE(true, false);
  if (kIsSanitized && are_many) return;  // nothing but many threads
  Job job(are_many ? 65 : 3);
  job.options.ipc = are_many;
  job.options.fusion_bytes = are_many ? 1 << 20 : 1;
  job.options.one_shot_bytes = 0;
  job.run([&](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, are_many ? kCount : 1000);
    check_counters(runtime, {{"mpi_operations", 1}});
  });
  CHECK(job.cuda.calls("cuIpcGetMemHandle") == 0);
}

TEST_CASE("cuda direct: on one host CUDA IPC goes before MPI, and where it fails, MPI serves") {
  const bool ipc_works = GENERATE(true, false);
  const CapturedErrors errors;
  Job job({0, 0}, kIpc, {.mappings_show_memory = ipc_works});
  job.run([&](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kCount);
    check_counters(runtime, {{"ipc_operations", ipc_works ? 1 : 0},
                             {"mpi_operations", ipc_works ? 0 : 1},
                             {"staged_operations", 0}});
  });
  CHECK((job.messages.begun > 0) == !ipc_works);
  CHECK(occurrences(errors.text(), "what is on GPUs is left to MPI or staged: ") ==
        (ipc_works ? 0 : 1));
}

TEST_CASE("cuda direct: process sets stage, and a single rank has no use for MPI") {
  Job job(GENERATE(1, 3));
  job.run([&](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kCount);
    if (job.size() == 1) return;
    const ProcessSet set = runtime.add_process_set({0, 2});
    if (runtime.rank_in(set)) sum_on_gpu(runtime, gpu, kCount, set);
    runtime.remove_process_set(set);
    sum_on_gpu(runtime, gpu, kCount);
    check_counters(runtime, {{"mpi_operations", 2}});  // those of all ranks
  });
  CHECK(job.messages.made == (job.size() == 1 ? 0 : job.size()));
}

TEST_CASE("cuda direct: where the MPI of one rank takes no addresses of GPUs, no rank starts") {
  Job job(2);
  run_ranks(2, [&](int rank) {
    CudaOptions cuda = job.options;
    if (rank == 1) cuda.gpu_aware_mpi = job.messages.factory("the MPI says no");
    RuntimeOptions options = job.runtime_options(rank);
    options.device_backends["cuda"] = cuda_backend_factory(cuda);
    check_contains(text_of<UsageError>([&] { const Runtime runtime(options); }),
                   "cannot start its backend: the MPI says no");
  });
  CHECK(job.messages.made == 0);
}

TEST_CASE("cuda direct: messages that fail, or whose rank leaves, end the group") {
  // The rank of messages that hang leaves.
  const Fault fault = GENERATE(Fault::NotBegun, Fault::Fails, Fault::Hangs);
  Job job(3);
  job.messages.faulty_rank = 1;
  job.messages.of_sends = GENERATE(true, false);
  std::barrier together(3);
  job.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kCount);
    together.arrive_and_wait();
    job.messages.fault = fault;
    std::weak_ptr<void> memory;
    const Work work = start_owned(runtime, gpu, kCount, memory);
    if (fault == Fault::Hangs) {
      while (counter_of(runtime, "cuda", "mpi_operations") < 2) std::this_thread::yield();
      together.arrive_and_wait();
      if (runtime.topology().rank == 1) return;
    }
    const Death death = death_of([&] { work.wait(); });
    check(death.rank == 1, "rank 1 is to blame: " + death.text);
    if (fault != Fault::Hangs) check_contains(death.text, "failed with code 75: a bad address");
    // MPI was never given the program's memory.
    check(memory.expired(), "the memory is handed back");
  });
  if (fault != Fault::Hangs) CHECK(job.messages.aborted == 3);
  CHECK(job.messages.closed == 0);
  // The fusion buffer, to which MPI may still write, is kept.
  CHECK(job.cuda.live().allocations > 0);
}
