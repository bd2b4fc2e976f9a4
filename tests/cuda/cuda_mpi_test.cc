// SPDX-License-Identifier: Apache-2.0
// The whole stack under mpiexec, each case in processes of its own, as MPI starts once in a
// process; with memory of GPUs in MPI's own messages: the GPU is a fake, whose memory is the
// host's, so that any MPI takes its addresses.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>

#include "backends/mpi/gpu_aware_mpi.h"
#include "backends/mpi/mpi_environment.h"
#include "backends/shm/shm.h"
#include "tests/support/fakes/fake_cuda_state.h"
#include "tests/support/fakes/fake_library.h"
#include "tests/support/gpu/gpu_aware_messages.h"
#include "tests/support/gpu/gpu_exercise.h"
#include "tests/support/gpu/gpu_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr std::size_t kCount = 50'000;

/// Of an MPI library that claims to take addresses of GPUs.
BackendFactory claiming(const MpiOptions& mpi = {}) {
  return gpu_aware_mpi_factory(
      mpi, library_of({{"MPIX_Query_cuda_support", address(+[] { return 1; })}}));
}

RuntimeOptions rank_options(const FakeMachine& machine, const MpiOptions& mpi,
                            const BackendFactory& gpu_aware_mpi, const std::string& cpu_backend,
                            std::chrono::milliseconds patience = CudaOptions().ipc_patience) {
  CudaOptions cuda = cuda_options_of(machine, kStaged);
  cuda.ipc_patience = patience;
  cuda.gpu_aware_mpi = gpu_aware_mpi;
  cuda.wrap_mpi_calls = wrap_mpi_calls();
  RuntimeOptions options;
  options.config = test_config();
  options.config.cpu_backend = cpu_backend;
  options.config.fusion_bytes = cuda.fusion_bytes;
  options.make_transport = mpi_transport_factory(mpi);
  options.make_board = shm_board_factory();
  options.backends["shm"] = shm_backend_factory();
  options.backends["mpi"] = mpi_backend_factory(mpi);
  options.device_backends["cuda"] = cuda_backend_factory(cuda);
  return options;
}

/// Whether a call of MPI, on a thread that has used no GPU, has the context of one.
bool calls_have_context() {
  bool have = false;
  std::thread([&] {
    mpi::MpiEnvironment::of_process()->call("a call of the test", [&] {
      have = !fake::contexts().empty();
      return MPI_SUCCESS;
    });
  }).join();
  return have;
}

/// A single rank has nobody to send to.
void check_went_directly(const Runtime& runtime) {
  const bool is_alone = runtime.topology().size == 1;
  CHECK((cuda_counter(runtime, "mpi_operations") > 0) != is_alone);
}

/// Reductions and exchanges go directly, and all else is staged, with the bits of that backend of
/// the CPU.
void exercise_over_mpi(const MpiOptions& mpi, const std::string& cpu_backend,
                       void (*more)(Runtime& runtime, ProgramGpu& gpu) = nullptr) {
  FakeMachine machine;
  {
    ProgramGpu gpu(machine.cuda.api(), 0);
    Runtime runtime(rank_options(machine, mpi, claiming(mpi), cpu_backend));
    CHECK_FALSE(calls_have_context());
    sum_on_gpu(runtime, gpu, kCount);
    CHECK(calls_have_context() == (runtime.topology().size > 1));
    exercise_allreduces(runtime, gpu);
    exercise_exchanges(runtime, gpu);
    exercise_sizes(runtime, gpu);
    exercise_messages(runtime, gpu);
    if (more != nullptr) more(runtime, gpu);
    check_went_directly(runtime);
    runtime.shutdown();
    CHECK_FALSE(calls_have_context());
  }
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

/// Says to Hydra what MPI_Finalize would have said to it last. It takes a rank that ends without
/// that for one that died: it kills the others, whose checks are then in vain, and what it reports
/// of them and of this one depends on luck. Other launchers have no PMI_FD.
void tell_launcher_of_end() {
  const char* const variable = std::getenv("PMI_FD");
  if (variable == nullptr) return;
  const int launcher = std::stoi(variable);
  constexpr std::string_view kEnd = "cmd=finalize\n";
  REQUIRE(::write(launcher, kEnd.data(), kEnd.size()) == std::ssize(kEnd));
  std::string answer;
  for (char next = 0; next != '\n'; answer += next) REQUIRE(::read(launcher, &next, 1) == 1);
  CHECK(answer == "cmd=finalize_ack\n");
}

}  // namespace

TEST_CASE("cuda over MPI: messages in memory of GPUs give the bits of shared memory", "[own]") {
  MpiOptions mpi;
  mpi.max_count = 30'001;  // so that messages take several calls
  exercise_over_mpi(mpi, "shm", exercise_wire_dtypes);
}

TEST_CASE("cuda over MPI: with two ranks the bits are those of MPI's own reductions", "[n2][own]") {
  exercise_over_mpi({}, "mpi");
}

TEST_CASE("cuda over MPI: a process set beside all ranks stages", "[n3][own]") {
  FakeMachine machine;
  ProgramGpu gpu(machine.cuda.api(), 0);
  Runtime runtime(rank_options(machine, {}, claiming(), "mpi"));
  sum_on_gpu(runtime, gpu, kCount);
  const ProcessSet set = runtime.add_process_set({0, 2});
  if (runtime.rank_in(set)) sum_on_gpu(runtime, gpu, kCount, set);
  runtime.remove_process_set(set);
  sum_on_gpu(runtime, gpu, kCount);
  CHECK(cuda_counter(runtime, "mpi_operations") == 2);
  runtime.shutdown();
}

TEST_CASE("cuda over MPI: messages that hang in the trial are left alone, and the job ends",
          "[n2][own]") {
  FakeMachine machine;
  {
    ProgramGpu gpu(machine.cuda.api(), 0);
    GpuAwareMessages messages(claiming());
    messages.faulty_rank = 1;
    messages.of_sends = true;
    messages.fault = GpuAwareMessages::Fault::Hangs;
    Runtime runtime(
        rank_options(machine, {}, messages.factory(), "mpi", std::chrono::milliseconds(200)));
    exercise_sizes(runtime, gpu);
    exercise_messages(runtime, gpu);
    CHECK(cuda_counter(runtime, "mpi_operations") == 0);
    CHECK(messages.aborted == 1);
    runtime.shutdown();
    CHECK(messages.closed == 0);
    // For as long as the process lives: MPI may go on with them.
    CHECK(calls_have_context());
  }
  // What MPI may still write to.
  CHECK(machine.cuda.live().allocations == 1);
  tell_launcher_of_end();
}

TEST_CASE("cuda over MPI: what the library itself says decides", "[n2][own]") {
  FakeMachine machine;
  ProgramGpu gpu(machine.cuda.api(), 0);
  const BackendFactory of_library = gpu_aware_mpi_factory({});
  Runtime runtime(rank_options(machine, {}, of_library, "shm"));
  const std::string problem = of_library.problem();
  INFO(problem);
  sum_on_gpu(runtime, gpu, kCount);
  CHECK(cuda_counter(runtime, "mpi_operations") == (problem.empty() ? 1 : 0));
  CHECK(cuda_counter(runtime, "staged_operations") == (problem.empty() ? 0 : 1));
  if (!problem.empty()) CHECK_THAT(problem, Catch::Contains("the MPI library "));
  runtime.shutdown();
}
