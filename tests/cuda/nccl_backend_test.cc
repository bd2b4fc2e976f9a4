// SPDX-License-Identifier: Apache-2.0
// When the nccl backend is there, how its ranks connect, and in which order with the program's
// streams it works.
#include <catch2/catch.hpp>
#include <memory>

#include "backends/cuda/cuda.h"
#include "backends/nccl/identity.h"
#include "nccl_ranks.h"
#include "tests/support/fake_library.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Catch::Contains;

/// A sum of `count` ones and more on each rank.
void check_sum(Runtime& runtime, Device gpu, const std::string& name, std::size_t count,
               ProcessSet set = kGlobalSet) {
  const int own = runtime.topology().rank;
  std::vector<float> values(count, static_cast<float>(own + 1));
  Request request = sum_request(values, name);
  request.device = gpu;
  request.set = set;
  runtime.run(request);
  float expected = 0;
  for (const int rank : runtime.ranks_of(set)) expected += static_cast<float>(rank + 1);
  check(values == std::vector<float>(count, expected), "the sum " + name);
}

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
  CHECK_THAT(problem_with({}, {.lacks = {"ncclSend", "ncclCommAbort"}}),
             Contains("ncclSend") && Contains("ncclCommAbort"));
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
  BackendContext context;
  CHECK_THROWS_WITH(factory.create(context), Contains("libnccl.so.2"));
  const auto throws = [](const char*, const char*, std::string&) -> void* {
    throw std::runtime_error("no loader");
  };
  CHECK(nccl_backend_factory({.driver_symbols = throws}).problem() == "no loader");
}

TEST_CASE("nccl that one rank lacks is refused by name, and otherwise not used") {
  NcclRanks machine(2, {.version = 21805});
  for (const std::string wanted : {"nccl", "auto"}) {
    machine.config.gpu_backend = wanted;
    const inproc::Group group(2);
    run_ranks(2, [&](int rank) {
      const auto start = [&] { return Runtime(machine.runtime_options(group, rank)); };
      if (wanted == "nccl") {
        check_contains(text_of<UsageError>([&] { start(); }), "RONDE_GPU_BACKEND=nccl: rank 0: ");
        return;
      }
      Runtime runtime = start();
      std::vector<float> values(3);
      Request request = sum_request(values, "x");
      request.device = machine.device(rank);
      const Work work = runtime.submit(request);
      check_contains(usage_error_of(work), "2.18.5");
      runtime.shutdown();
    });
  }
}

TEST_CASE("nccl touches no GPU before the first operation") {
  NcclRanks machine(2);
  machine.run([&](int, Runtime& runtime) {
    check(runtime.backend_name(DeviceKind::Cuda) == "nccl", "it is chosen");
    std::vector<float> values(3);
    runtime.run(sum_request(values, "on the CPU"));
  });
  CHECK(machine.cuda.calls("cuDevicePrimaryCtxRetain") == 0);
  CHECK(machine.nccl.calls("ncclGetUniqueId") == 0);
}

TEST_CASE("nccl registers the fusion buffer once, and nothing where registrations are off") {
  struct Row {
    bool is_on;
    std::vector<std::string> lacks;
    int allocated, registered;
  };
  const Row rows[] = {{true, {}, 2, 2},
                      {true, {"ncclMemAlloc"}, 0, 2},
                      {true, {"ncclCommRegister"}, 2, 0},
                      {false, {}, 0, 0}};
  std::vector<std::vector<TensorValues>> results;
  for (const Row& row : rows) {
    NcclRanks machine(2, {.lacks = row.lacks});
    machine.options.registration_cache = row.is_on;
    auto& of_row = results.emplace_back(2, TensorValues(DataType::BF16, 5000));
    machine.run([&](int rank, Runtime& runtime) {
      for (int step = 0; step < 5; ++step) {
        Buffers buffers(DataType::BF16, 5000);
        for (std::size_t i = 0; i < 5000; ++i) {
          buffers.input.set(i, 0.37 * static_cast<double>(i) + rank + step);
        }
        runtime.run(request_on(machine.device(rank), Collective::Allreduce, "x", buffers));
        of_row[static_cast<std::size_t>(rank)] = buffers.output;
      }
      const std::uint64_t once = row.registered > 0 ? 1 : 0;
      check(counter_of(runtime, "nccl", "registration_misses") == once, "it is registered once");
      check((counter_of(runtime, "nccl", "registration_hits") > 4) == (once > 0), "and then hit");
    });
    CHECK(machine.nccl.misuses().empty());
    CHECK(machine.nccl.calls("ncclMemAlloc") == row.allocated);
    CHECK(machine.nccl.calls("ncclCommRegister") == row.registered);
    CHECK(machine.nccl.calls("ncclCommDeregister") == row.registered);
    CHECK(results.front() == of_row);
  }
}

TEST_CASE("nccl's streams take turns") {
  NcclRanks machine(2);
  machine.options.streams = 3;
  machine.run([&](int rank, Runtime& runtime) {
    for (int step = 0; step < 7; ++step) {
      check_sum(runtime, machine.device(rank), "x", 100 * static_cast<std::size_t>(step + 1));
    }
    check(counter_of(runtime, "nccl", "communicators") == 3, "one a stream");
    check(counter_of(runtime, "nccl", "collectives") == 7, "collectives are counted");
  });
  CHECK(machine.nccl.calls("ncclCommInitRankConfig") == 6);
}

TEST_CASE("nccl serves process sets that overlap, each by its own communicator") {
  NcclRanks machine(3);
  machine.run([&](int rank, Runtime& runtime) {
    const Device gpu = machine.device(rank);
    std::vector<ProcessSet> sets;
    for (const std::vector<int>& ranks : {std::vector{0, 1}, {1, 2}, {2, 0}}) {
      const ProcessSet set = runtime.add_process_set(ranks);
      if (runtime.rank_in(set)) sets.push_back(set);
    }
    for (int step = 0; step < 3; ++step) {
      for (const ProcessSet set : sets) check_sum(runtime, gpu, "of a set", 700, set);
      check_sum(runtime, gpu, "of all", 700);
    }
  });
}

TEST_CASE("nccl reads nothing before what the program's stream has queued, and holds up nobody") {
  NcclRanks machine(2);
  machine.run([&](int rank, Runtime& runtime) {
    for (const std::size_t count : {10, 3000}) {
      ProgramStream stream(machine, rank);
      std::vector<float> source(count, static_cast<float>(rank + 1)), values(count, 100.0F);
      Request request = sum_request(values, "x");
      request.device = machine.device(rank);
      request.stream = stream.handle();
      stream.hold_before_copy(values.data(), source.data(), count * sizeof(float));
      if (rank == 1) stream.release();
      const Work work = runtime.submit(request);
      // The result is queued while an input is still to come.
      work.wait_on(nullptr);
      if (rank == 0) {
        check(!work.done(), "the input is not there");
        stream.release();
      }
      work.wait();
      check(values == std::vector<float>(count, 3.0F), "the sum of what was copied");
    }
  });
}

TEST_CASE("nccl names two ranks that share a GPU, and what to do") {
  NcclRanks machine(3);
  machine.device_of = {0, 1, 0};
  machine.run_to_its_death([&](int rank, Runtime& runtime) {
    std::vector<float> values(3);
    Request request = sum_request(values, "x");
    request.device = machine.device(rank);
    const Death death = death_of([&] { runtime.run(request); });
    check_contains(death.text, "rank 0 and rank 2 are both on GPU-01010101-");
    check_contains(death.text, "(0000:00:00.0), but NCCL needs a GPU for each rank");
    check_contains(death.text, "RONDE_GPU_BACKEND=mpi");
    check_contains(death.text, "CUDA_VISIBLE_DEVICES");
  });
  CHECK(machine.nccl.calls("ncclGetUniqueId") == 0);
  machine.check_clean();
}

TEST_CASE("nccl leaves ranks that share a GPU to the fallback, with one line in the log") {
  NcclRanks machine(3);
  machine.device_of = {0, 1, 0};
  machine.options.fallback = make_stand_in;
  machine.run([&](int rank, Runtime& runtime) {
    for (int step = 0; step < 3; ++step) check_sum(runtime, machine.device(rank), "x", 500);
    check(counter_of(runtime, "nccl", "fallback") == 1, "it is counted");
    check(counter_of(runtime, "nccl", "fallback_here") == 1, "and counts itself");
    check(counter_of(runtime, "nccl", "communicators") == 0, "nobody connects");
  });
  CHECK(machine.warnings().size() == 1);
  CHECK_THAT(machine.warnings().at(0),
             Contains("rank 0 and rank 2 are both on GPU-01010101-") && Contains("'stand-in'"));
}

TEST_CASE("nccl's fallback is the backend of CUDA IPC where ranks share a GPU") {
  NcclRanks machine(2);
  machine.device_of = {0, 0};
  CudaOptions cuda;
  cuda.symbols = machine.cuda.lookup();
  cuda.kernel_image = "an image";
  machine.options.fallback = cuda_backend_factory(cuda).create;
  machine.run([&](int rank, Runtime& runtime) {
    for (int step = 0; step < 3; ++step) check_sum(runtime, machine.device(rank), "x", 500);
    check(counter_of(runtime, "nccl", "fallback_ipc_operations") == 3, "by CUDA IPC");
  });
}

TEST_CASE("nccl messages before the first collective find a shared GPU pair by pair") {
  NcclRanks machine(3);
  machine.device_of = {0, 1, 0};
  machine.options.fallback = make_stand_in;
  machine.run([&](int rank, Runtime& runtime) {
    for (int step = 0; step < 3; ++step) {
      // 0 and 2 share a GPU, 0 and 1 do not.
      for (const int peer : {2, 1}) {
        if (rank != 0 && rank != peer) continue;
        std::vector<float> values(40, rank == 0 ? 7.0F : 0.0F);
        Request request = rank == 0 ? send_request(values, peer) : recv_request(values, 0);
        request.device = machine.device(rank);
        runtime.run(request);
        check(values == std::vector<float>(40, 7.0F), "the message");
      }
      // From then on all is the fallback's.
      if (step > 0) check_sum(runtime, machine.device(rank), "x", 500);
    }
    const std::uint64_t connected = rank == 2 ? 0 : 1;
    check(counter_of(runtime, "nccl", "communicators") == connected, "of the pair that can");
  });
  CHECK(machine.warnings().size() == 1);
}

TEST_CASE("nccl finds ranks on one GPU also where its host has two names, and mixed versions") {
  using nccl::Candidate;
  using nccl::identity_of;
  const cuda::Gpu one{.name = "", .uuid = "GPU-one", .pci_id = "0000:1b:00.0"};
  const cuda::Gpu two{.name = "", .uuid = "GPU-two", .pci_id = "0000:1b:00.0"};
  const auto ranks = [&](int host, const cuda::Gpu& gpu, int version) {
    return std::vector<Candidate>{{4, 0, identity_of(one, 22809)},
                                  {7, host, identity_of(gpu, version)}};
  };
  CHECK(nccl::shared_gpu(ranks(1, two, 22809)).empty());
  CHECK(nccl::shared_gpu(ranks(0, two, 22809)) ==
        "rank 4 and rank 7 are both on GPU-one (0000:1b:00.0)");
  CHECK(nccl::shared_gpu(ranks(1, one, 22809)) ==
        "rank 4 and rank 7 are both on GPU-one (0000:1b:00.0)");
  CHECK(nccl::mixed_versions(ranks(1, two, 22809)).empty());
  CHECK_THAT(nccl::mixed_versions(ranks(1, two, 21903)),
             Contains("rank 4 has NCCL 2.28.9, rank 7 has 2.19.3"));
}

TEST_CASE("nccl takes along a rank that has joined before it had a tensor on a GPU") {
  NcclRanks machine(2);
  machine.run([&](int rank, Runtime& runtime) {
    if (rank == 0) {
      std::vector<float> values(1000, 3.0F);
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max}) {
        Request request = sum_request(values, "alone");
        request.op = op;
        request.device = machine.device(rank);
        runtime.run(request);
        check(values == std::vector<float>(1000, 3.0F), "what rank 0 alone has brought");
      }
    }
    Request join;
    join.kind = Collective::Join;
    runtime.submit(std::move(join)).wait();
    check_sum(runtime, machine.device(rank), "after", 1000);
  });
}

}  // namespace
