// SPDX-License-Identifier: Apache-2.0
// When the nccl backend is there, how its ranks connect, and in which order with the program's
// streams it works.
#include <catch2/catch.hpp>

#include "backends/compose.h"
#include "backends/nccl/channel.h"
#include "core/src/base/fields.h"
#include "tests/support/fakes/fake_library.h"
#include "tests/support/gpu/gpu_exercise.h"
#include "tests/support/gpu/gpu_ranks.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Catch::Contains;

TEST_CASE("nccl says why a rank cannot have it") {
  const auto problem_with = [&](int devices, bool has_nccl, bool has_kernels) {
    FakeCuda cuda({.devices = devices});
    const FakeNccl nccl(cuda, {});
    const BackendFactory factory =
        nccl_backend_factory({.driver_symbols = cuda.lookup(),
                              .nccl_symbols = has_nccl ? nccl.lookup() : kNoLibrary,
                              .kernel_image = has_kernels ? "an image" : nullptr});
    CHECK(factory.device == DeviceKind::Cuda);
    CHECK(factory.serves_sets);
    return factory.problem();
  };
  CHECK(problem_with(1, true, true).empty());
  CHECK_THAT(problem_with(0, true, true), Contains("CUDA_VISIBLE_DEVICES"));
  CHECK_THAT(problem_with(1, false, true), Contains("libnccl.so.2"));
  CHECK_THAT(problem_with(1, true, false), Contains("no kernels") && Contains("CUDA Toolkit"));
  const BackendFactory without_driver = nccl_backend_factory({.driver_symbols = kNoLibrary});
  CHECK_THAT(without_driver.problem(), Contains("libcuda.so.1"));
  const Topology alone;
  BackendContext context;
  context.topology = &alone;
  context.ranks = {0};
  context.exchange = [](std::string_view own) { return std::vector{std::string(own)}; };
  CHECK_THROWS_WITH(without_driver.create(context),
                    Contains("rank 0: ") && Contains("libcuda.so.1"));
  const auto throws = [](const char*, const char*, std::string&) -> void* {
    throw std::runtime_error("no loader");
  };
  CHECK(nccl_backend_factory({.driver_symbols = throws}).problem() == "no loader");
}

TEST_CASE("nccl registers the fusion buffer once, and nothing where registrations are off") {
  struct Row {
    bool is_on;
    FakeNccl::Options nccl;
    int allocations, windows;  ///< of two ranks
  };
  const Row rows[] = {{true, {}, 2, 2},
                      {true, {.lacks = {"ncclCommWindowRegister"}}, 0, 0},
                      {true, {.makes_windows = false}, 2, 0},
                      {false, {}, 0, 0}};
  for (const Row& row : rows) {
    NcclRanks machine(2, row.nccl);
    machine.options.registration_cache = row.is_on;
    machine.run(exercise_sizes);
    CHECK(machine.cuda.calls("ncclMemAlloc") == row.allocations);
    CHECK(machine.cuda.calls("ncclCommWindowDeregister") == row.windows);
  }
}

/// Ranks 0 and 2 of these share a GPU.
struct SharedGpu : NcclRanks {
  explicit SharedGpu(const FakeNccl::Options& fake = {}) : NcclRanks(3, fake, {.devices = 2}) {
    device_of = {0, 1, 0};
  }
};

TEST_CASE("nccl that is new enough serves ranks that share a GPU, where all say that they may") {
  SharedGpu machine({.version = 23007, .ranks_share_gpus = true});
  machine.options.ranks_may_share_gpus = true;
  machine.run([](Runtime& runtime, ProgramGpu& gpu) {
    const ProcessSet set = runtime.add_process_set({0, 2});
    for (int step = 0; step < 3; ++step) sum_on_gpu(runtime, gpu, 500);
    if (runtime.rank_in(set)) sum_on_gpu(runtime, gpu, 500, set);
  });
  CHECK(machine.cuda.calls("ncclGetUniqueId") == 2);
}

/// All sums, also those of a process set, are left to the backend of CUDA IPC, with one warning.
void check_fallback(NcclRanks& machine, const std::string& reason) {
  CudaOptions backend;
  backend.symbols = machine.cuda.lookup();
  backend.kernel_image = "an image";
  machine.options.fallback = cuda_backend_factory(backend).create;
  machine.run_to_its_death([](Runtime& runtime, ProgramGpu& gpu) {
    const ProcessSet set = runtime.add_process_set({0, 1, 2});
    for (int step = 0; step < 3; ++step) sum_on_gpu(runtime, gpu, 500);
    sum_on_gpu(runtime, gpu, 500, set);
    check_counters(runtime, {{"ipc_operations", 3}});
    runtime.shutdown();
  });
  machine.end_connecting();  // of ranks that NCCL keeps in its call
  REQUIRE(machine.warnings.size() == 1);
  CHECK_THAT(
      machine.warnings[0],
      Contains(reason) && Contains(". In its place the backend 'cuda' moves tensors on GPUs"));
}

TEST_CASE("nccl leaves ranks that share a GPU to the backend of CUDA IPC, with one line") {
  SharedGpu machine;
  machine.options.ranks_may_share_gpus = GENERATE(false, true);  // this one is too old
  check_fallback(machine, "rank 0 and rank 2 are both on GPU-01010101-");
  CHECK(machine.cuda.calls("ncclGetUniqueId") == 0);
}

TEST_CASE("nccl that cannot connect leaves the ranks to the backend of CUDA IPC, with one line") {
  NcclRanks machine(3);
  // In the last two the other ranks wait in NCCL until their time is over.
  const std::string failing = GENERATE("ncclGetUniqueId", "ncclMemAlloc", "ncclCommInitRankConfig",
                                       "ncclCommWindowRegister");
  machine.options.init_timeout_s = 3;
  machine.cuda.fail(failing, nccl::kInternalError, 1);
  check_fallback(machine, failing + ": the fake says so (3)");
}

TEST_CASE("nccl finds ranks on one GPU also where its host has two names, and mixed versions") {
  const auto conflict = [](int host, const char* uuid, const char* version,
                           const std::vector<std::string>& shares = {"", ""}) {
    Topology topology;
    topology.host_of = SharedNumbers({0, host});
    BackendContext context;
    context.topology = &topology;
    context.ranks = {4, 7};
    return nccl::conflict_of(context,
                             {pack_fields({"2.28.9", "GPU-one", "0000:1b:00.0", shares[0]}),
                              pack_fields({version, uuid, "0000:1b:00.0", shares[1]})});
  };
  const std::string both = "rank 4 and rank 7 are both on GPU-";
  CHECK(conflict(1, "GPU-two", "2.28.9").empty());
  CHECK_THAT(conflict(0, "GPU-two", "2.28.9"), Contains(both));
  CHECK(conflict(1, "GPU-one", "2.28.9") ==
        both +
            "one (0000:1b:00.0), but NCCL needs a GPU for each rank: give each its own by "
            "CUDA_VISIBLE_DEVICES, set RONDE_GPU_BACKEND=cuda, by which ranks share one, or set "
            "NCCL_MULTI_RANK_GPU_ENABLE=1 on all ranks with NCCL 2.30.0 or newer (this is "
            "2.28.9)");
  CHECK_THAT(conflict(0, "GPU-one", "2.28.9", {"may share", ""}), Contains(both));
  CHECK(conflict(0, "GPU-one", "2.28.9", {"may share", "may share"}).empty());
  CHECK_THAT(conflict(1, "GPU-two", "2.19.3"),
             Contains("rank 4 has NCCL 2.28.9, rank 7 has 2.19.3"));
}

TEST_CASE("nccl: RONDE_EXACT has the ranks combine floats in their order") {
  const bool is_exact = GENERATE(false, true);
  CAPTURE(is_exact);
  NcclRanks machine(2);
  const auto symbols = [&](const char* library, const char* symbol, std::string& error) {
    const bool is_of_nccl = std::string(library) == nccl::kLibrary;
    return (is_of_nccl ? machine.nccl.lookup() : machine.cuda.lookup())(library, symbol, error);
  };
  machine.config.exact = is_exact;
  run_ranks(2, [&](int rank) {
    ProgramGpu gpu = machine.gpu(rank);
    RuntimeOptions options = machine.runtime_options(rank);
    options.device_backends["nccl"] = gpu_setups(machine.config, symbols, "an image").at("nccl");
    Runtime runtime(options);
    sum_on_gpu(runtime, gpu, 100);
    check((counter_of(runtime, "nccl", "chunks_in_order") > 0) == is_exact, "who sums");
    runtime.shutdown();
  });
}

}  // namespace
