// SPDX-License-Identifier: Apache-2.0
// The whole stack under mpiexec, each case in processes of its own, as MPI starts once in a
// process; with memory of GPUs in MPI's own messages: the GPU is a fake, whose memory is the
// host's, so that any MPI takes its addresses.
#include <catch2/catch.hpp>
#include <string>

#include "backends/mpi/gpu_aware_mpi.h"
#include "backends/mpi/mpi_environment.h"
#include "backends/shm/shm.h"
#include "tests/support/fakes/fake_library.h"
#include "tests/support/gpu/gpu_exercise.h"
#include "tests/support/gpu/gpu_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

/// An MPI library that reports whether it takes addresses of GPUs.
BackendFactory reporting(int (*answer)(), const MpiOptions& mpi = {}) {
  return gpu_aware_mpi_factory(mpi, library_of({{"MPIX_Query_cuda_support", address(answer)}}));
}

/// Reductions and exchanges go directly, and all else is staged, with the bits of that backend of
/// the CPU: MPI's own one sends no halves.
void exercise_over_mpi(const MpiOptions& mpi, const std::string& cpu_backend) {
  FakeCuda fake;
  {
    CudaOptions cuda = cuda_options_of(fake, kStaged);
    cuda.gpu_aware_mpi = reporting(
        +[] { return 1; }, mpi);
    RuntimeOptions options;
    options.config = test_config();
    options.config.cpu_backend = cpu_backend;
    options.config.fusion_bytes = cuda.fusion_bytes;
    options.make_transport = mpi_transport_factory(mpi);
    options.make_board = shm_board_factory();
    options.backends["shm"] = shm_backend_factory();
    options.backends["mpi"] = mpi_backend_factory(mpi);
    options.device_backends["cuda"] = cuda_backend_factory(cuda);
    ProgramGpu gpu(fake.api(), 0);
    Runtime runtime(options);
    for (const auto& [what, exercise] : kExercises) {
      if (cpu_backend == "shm" || exercise != exercise_wire_dtypes) exercise(runtime, gpu);
    }
    // A single rank has nobody to send to.
    CHECK((counter_of(runtime, "cuda", "mpi_operations") > 0) == (runtime.topology().size > 1));
    runtime.shutdown();
  }
  CHECK(fake.live() == FakeCuda::Live{});
}

}  // namespace

TEST_CASE("cuda over MPI: messages in memory of GPUs give the bits of shared memory", "[own]") {
  MpiOptions mpi;
  mpi.max_count = 30'001;  // so that messages take several calls
  exercise_over_mpi(mpi, "shm");
}

TEST_CASE("cuda over MPI: with two ranks the bits are those of MPI's own reductions", "[n2][own]") {
  exercise_over_mpi({}, "mpi");
}

TEST_CASE("cuda over MPI: a library that reports that it takes no addresses is refused",
          "[n2][own]") {
  mpi::MpiMembership membership(mpi::MpiEnvironment::of_process());
  CHECK_THAT(reporting(+[] { return 0; }).problem(), Catch::Contains("takes no addresses of GPUs"));
  CHECK(reporting(+[] { return 1; }).problem().empty());
  membership.leave(true);
}
