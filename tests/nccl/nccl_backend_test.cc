// SPDX-License-Identifier: Apache-2.0
// When the nccl backend is there, how its ranks connect, and in which order with the program's
// streams it works.
#include <catch2/catch.hpp>

#include "backends/nccl/channel.h"
#include "core/src/base/fields.h"
#include "tests/support/gpu/gpu_exercise.h"
#include "tests/support/gpu/nccl_ranks.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Catch::Contains;

std::string problem_with(const FakeCuda::Options& cuda_options,
                         const FakeNccl::Options& nccl_options, bool has_kernels = true) {
  FakeCuda cuda(cuda_options);
  const FakeNccl nccl(cuda, nccl_options);
  const BackendFactory factory =
      nccl_backend_factory({.driver_symbols = cuda.lookup(),
                            .nccl_symbols = nccl.lookup(),
                            .kernel_image = has_kernels ? "an image" : nullptr});
  CHECK(factory.device == DeviceKind::Cuda);
  CHECK(factory.serves_sets);
  return factory.problem();
}

TEST_CASE("nccl says why a rank cannot have it") {
  CHECK(problem_with({}, {}).empty());
  CHECK_THAT(problem_with({.version = 11080}, {}), Contains("11.8") && Contains("12.0"));
  CHECK_THAT(problem_with({.devices = 0}, {}), Contains("CUDA_VISIBLE_DEVICES"));
  CHECK_THAT(problem_with({}, {.version = 21805}), Contains("2.18.5") && Contains("2.19.0"));
  CHECK_THAT(problem_with({}, {}, false), Contains("no kernels") && Contains("CUDA Toolkit"));
  const auto nothing = [](const char* library, const char*, std::string& error) -> void* {
    error = std::string(library) + ": cannot open shared object file";
    return nullptr;
  };
  CHECK_THAT(nccl_backend_factory({.driver_symbols = nothing}).problem(), Contains("libcuda.so.1"));
  FakeCuda cuda;
  const BackendFactory factory = nccl_backend_factory(
      {.driver_symbols = cuda.lookup(), .nccl_symbols = nothing, .kernel_image = "an image"});
  CHECK_THAT(factory.problem(), Contains("libnccl.so.2"));
  const Topology alone;
  BackendContext context;
  context.topology = &alone;
  context.ranks = {0};
  context.exchange = [](std::string_view own) { return std::vector{std::string(own)}; };
  CHECK_THROWS_WITH(factory.create(context), Contains("rank 0: ") && Contains("libnccl.so.2"));
  const auto throws = [](const char*, const char*, std::string&) -> void* {
    throw std::runtime_error("no loader");
  };
  CHECK(nccl_backend_factory({.driver_symbols = throws}).problem() == "no loader");
}

TEST_CASE("nccl that one rank lacks is refused by name, and otherwise not used") {
  NcclRanks machine(2, {.version = 21805});
  for (const std::string wanted : {"nccl", "auto"}) {
    machine.config.gpu_backend = wanted;
    run_ranks(2, [&](int rank) {
      const auto start = [&] { return Runtime(machine.runtime_options(rank)); };
      if (wanted == "nccl") {
        check_contains(text_of<UsageError>([&] { start(); }), "RONDE_GPU_BACKEND=nccl: rank 0: ");
        return;
      }
      ProgramGpu gpu = machine.gpu(rank);
      Runtime runtime = start();
      GpuSum sum(runtime, gpu, 3);
      check_contains(usage_error_of(sum.start()), "2.18.5");
      runtime.shutdown();
    });
    machine.begin_job();
  }
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

TEST_CASE("nccl serves process sets that overlap, each by its own communicator") {
  NcclRanks machine(3);
  machine.run([](Runtime& runtime, ProgramGpu& gpu) {
    std::vector<ProcessSet> sets;
    for (const std::vector<int>& ranks : {std::vector{0, 1}, {1, 2}, {2, 0}}) {
      const ProcessSet set = runtime.add_process_set(ranks);
      if (runtime.rank_in(set)) sets.push_back(set);
    }
    for (int step = 0; step < 3; ++step) {
      for (const ProcessSet set : sets) sum_on_gpu(runtime, gpu, 700, set);
      sum_on_gpu(runtime, gpu, 700);
    }
  });
}

/// Ranks 0 and 2 of these share a GPU.
struct SharedGpu : NcclRanks {
  explicit SharedGpu(const FakeNccl::Options& fake = {}) : NcclRanks(3, fake, {.devices = 2}) {
    device_of = {0, 1, 0};
  }
};

TEST_CASE("nccl names two ranks that share a GPU, and what to do") {
  SharedGpu machine;
  machine.options.ranks_may_share_gpus = GENERATE(false, true);  // this one is too old
  machine.fail_to_start([](const std::string& text) {
    check_contains(text, "rank 0 and rank 2 are both on GPU-01010101-");
    check_contains(text, "(0000:00:00.0), but NCCL needs a GPU for each rank: give each its own");
    check_contains(text, "RONDE_GPU_BACKEND=cuda");
    check_contains(text, "CUDA_VISIBLE_DEVICES");
    check_contains(
        text,
        "NCCL_MULTI_RANK_GPU_ENABLE=1 on all ranks with NCCL 2.30.0 or newer (this is 2.28.9)");
  });
  CHECK(machine.cuda.calls("ncclGetUniqueId") == 0);
  machine.check_clean();
}

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
  machine.check_clean();
  REQUIRE(machine.warnings.size() == 1);
  CHECK_THAT(
      machine.warnings[0],
      Contains(reason) && Contains(". In its place the backend 'cuda' moves tensors on GPUs"));
}

TEST_CASE("nccl leaves ranks that share a GPU to the backend of CUDA IPC, with one line") {
  SharedGpu machine;
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

TEST_CASE("nccl refuses a tensor on another GPU than the one that it has connected") {
  NcclRanks machine(1, {}, {.devices = 2});
  machine.device_of = {1};
  machine.run([](Runtime& runtime, ProgramGpu& gpu) {
    GpuSum sum(runtime, gpu, 3);
    check_contains(text_of<UsageError>([&] { sum.start().wait(); }),
                   "a tensor is on GPU 1, but this rank uses GPU 0");
  });
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
  const std::string both = "rank 4 and rank 7 are both on ";
  CHECK(conflict(1, "GPU-two", "2.28.9").empty());
  CHECK_THAT(conflict(0, "GPU-two", "2.28.9"), Contains(both));
  CHECK_THAT(conflict(1, "GPU-one", "2.28.9"), Contains(both + "GPU-one (0000:1b:00.0)"));
  CHECK_THAT(conflict(0, "GPU-one", "2.28.9", {"may share", ""}), Contains(both));
  CHECK(conflict(0, "GPU-one", "2.28.9", {"may share", "may share"}).empty());
  CHECK_THAT(conflict(1, "GPU-two", "2.19.3"),
             Contains("rank 4 has NCCL 2.28.9, rank 7 has 2.19.3"));
}

TEST_CASE("nccl takes along a rank that has joined without a tensor on a GPU") {
  NcclRanks machine(2);
  machine.run([](Runtime& runtime, ProgramGpu& gpu) {
    if (runtime.topology().rank == 0) {
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max}) {
        GpuSum sum(runtime, gpu, 1000);
        sum.write(3.0F);
        Request request = sum.request("alone");
        request.op = op;
        runtime.run(std::move(request));
        sum.check_values(3.0F, "what rank 0 alone has brought");
      }
    }
    Request join;
    join.kind = Collective::Join;
    runtime.submit(std::move(join)).wait();
    sum_on_gpu(runtime, gpu, 1000);
  });
}

}  // namespace
