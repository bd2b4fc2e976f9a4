// SPDX-License-Identifier: Apache-2.0
// The order of what Ronde and the program queue on a GPU: by events alone, and right whatever runs
// when.
#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <map>
#include <string>

#include "gpu_exercise.h"
#include "gpu_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr std::size_t kCount = 5000;

struct Way {
  const char* name;
  bool ipc;
  bool cache;
  std::uint64_t direct_bytes;
};

constexpr Way kIpc{"ipc", true, true, 0};
constexpr Way kDirect{"ipc, mapped directly", true, true, 1};
constexpr Way kUnkept{"ipc, nothing kept", true, false, 1};
constexpr Way kStaged{"staged", false, true, 0};
constexpr Way kStagedUnkept{"staged, nothing kept", false, false, 0};

CudaOptions options_of(const FakeMachine& machine, const Way& way) {
  CudaOptions options = cuda_options_of(machine);
  options.ipc = way.ipc;
  options.registration_cache = way.cache;
  options.ipc_direct_bytes = way.direct_bytes;
  return options;
}

/// Work on a GPU that is done late, and at any time that the order of streams leaves.
void in_disorder(const std::function<void(Runtime&, ProgramGpu&)>& body, int seeds) {
  const Way way = GENERATE(kIpc, kDirect, kUnkept, kStaged, kStagedUnkept);
  const int ranks = GENERATE(2, 3);
  const int devices = GENERATE(1, 2);
  for (int seed = 1; seed <= seeds; ++seed) {
    INFO(way.name << ", " << ranks << " ranks, " << devices << " GPUs, seed " << seed);
    FakeMachine machine({.devices = devices, .disorder = static_cast<unsigned>(seed)});
    run_gpu_ranks(machine, ranks, devices, options_of(machine, way), body);
    CHECK(machine.cuda.live() == FakeCuda::Live{});
  }
}

/// Without a wait between them, each on the result of the one before.
void exercise_chains(Runtime& runtime, ProgramGpu& gpu) {
  constexpr int kSteps = 4;
  const int size = runtime.topology().size;
  std::vector<GpuSum> sums;
  for (const std::size_t count : {std::size_t{10}, std::size_t{3000}, std::size_t{40'000}}) {
    sums.emplace_back(runtime, gpu, count);
  }
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Work> works;
    works.reserve(sums.size());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      Request request = sums[i].request("sum " + std::to_string(i));
      if (step > 0) request.op = ReduceOp::Average;
      works.push_back(runtime.submit(std::move(request)));
    }
    for (const Work& work : works) work.wait_on(gpu.stream.handle());
  }
  const auto expected = static_cast<float>(size * (size + 1) / 2);
  for (const GpuSum& sum : sums) {
    for (const float value : sum.read()) check(value == expected, "a chain of sums");
  }
}

}  // namespace

TEST_CASE("cuda streams: reductions have their bits in any order that events leave") {
  in_disorder(exercise_sizes, 2);
}

TEST_CASE("cuda streams: exchanges have their bits in any order that events leave") {
  in_disorder(exercise_exchanges, 1);
}

TEST_CASE("cuda streams: chains without a wait have their sums in any order that events leave") {
  in_disorder(exercise_chains, 4);
}

TEST_CASE("cuda streams: inputs written behind a held stream are not read before it is released") {
  const Way way = GENERATE(kIpc, kDirect, kStaged);
  INFO(way.name);
  std::barrier together(2);
  FakeMachine machine;
  run_gpu_ranks(machine, 2, 1, options_of(machine, way), [&](Runtime& runtime, ProgramGpu& gpu) {
    const bool is_held = runtime.topology().rank == 1;
    GpuSum sum(runtime, gpu, kCount);
    if (is_held) {
      sum.write(-5.0F);
      static_cast<void>(sum.read());
      machine.cuda.hold(gpu.stream.handle());
      sum.write(2.0F);
    }
    const Work work = sum.start();
    // By ipc all is queued meanwhile; what is staged is not even that.
    if (way.ipc) work.wait_on(gpu.stream.handle());
    check(!work.wait_for(std::chrono::milliseconds(20)), "not done before its input is there");
    check(!work.done(), "not done");
    together.arrive_and_wait();
    if (is_held) machine.cuda.release(gpu.stream.handle());
    sum.check_result(work);
  });
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

TEST_CASE("cuda streams: a result may be read on another stream that waits for it") {
  const Way way = GENERATE(kIpc, kDirect, kUnkept, kStaged);
  INFO(way.name);
  FakeMachine machine({.disorder = 3});
  run_gpu_ranks(machine, 2, 1, options_of(machine, way), [&](Runtime& runtime, ProgramGpu& gpu) {
    cuda::Stream other(gpu.context);
    cuda::PinnedPool pinned(gpu.context, 1 << 20);
    for (int step = 0; step < 20; ++step) {
      GpuSum sum(runtime, gpu, kCount);
      const Work work = sum.start();
      work.wait_on(other.handle());
      const cuda::PinnedBlock values = pinned.take(kCount * sizeof(float));
      other.copy(values.address(), reinterpret_cast<cuda::DevicePointer>(sum.tensor().data()),
                 kCount * sizeof(float), "reading on another stream");
      {
        const cuda::Current current(*gpu.context);
        cuda::check(gpu.context->api(), "waiting", gpu.context->api().stream_synchronize,
                    other.handle());
      }
      const auto* const read = reinterpret_cast<const float*>(values.data());
      for (std::size_t i = 0; i < kCount; ++i) check(read[i] == 3.0F, "the sum");
      work.wait();
    }
  });
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

TEST_CASE("cuda streams: steps are queued ahead of a held stream, as many as one likes") {
  const Way way = GENERATE(kIpc, kDirect);
  INFO(way.name);
  constexpr int kSteps = 20;
  std::barrier together(2);
  FakeMachine machine;
  run_gpu_ranks(machine, 2, 1, options_of(machine, way), [&](Runtime& runtime, ProgramGpu& gpu) {
    machine.cuda.hold(gpu.stream.handle());
    GpuSum sum(runtime, gpu, kCount);
    Work last;
    for (int step = 0; step < kSteps; ++step) {
      Request request = sum.request("gradient");
      if (step > 0) request.op = ReduceOp::Average;
      last = runtime.submit(std::move(request));
      last.wait_on(gpu.stream.handle());
      check(!last.done(), "only queued");
    }
    together.arrive_and_wait();
    machine.cuda.release(gpu.stream.handle());
    sum.check_result(last);
  });
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

TEST_CASE("cuda streams: a step of training waits for no GPU, and makes nothing that was there") {
  const Way way = GENERATE(kIpc, kDirect, kStaged);
  INFO(way.name);
  constexpr int kTensors = 600;  // more than the first table of segments holds
  const std::vector<std::string> unwanted = {
      "cuStreamSynchronize", "cuEventSynchronize",    "cuMemAlloc_v2",
      "cuMemFree_v2",        "cuMemHostAlloc",        "cuMemFreeHost",
      "cuModuleLoadData",    "cuIpcOpenMemHandle_v2", "cuStreamCreateWithPriority"};
  std::barrier together(2);
  std::map<std::string, int> before;
  std::map<std::string, int> after;
  const auto count = [&](FakeMachine& machine, std::map<std::string, int>& calls) {
    for (const std::string& symbol : unwanted) calls[symbol] = machine.cuda.calls(symbol);
  };
  FakeMachine machine;
  CudaOptions options = options_of(machine, way);
  options.fusion_bytes = 1 << 20;
  run_gpu_ranks(machine, 2, 1, options, [&](Runtime& runtime, ProgramGpu& gpu) {
    const bool counts = runtime.topology().rank == 0;
    std::vector<GpuSum> gradients;
    for (int i = 0; i < kTensors; ++i) {
      gradients.emplace_back(runtime, gpu, static_cast<std::size_t>(10 + i % 7));
    }
    gradients.emplace_back(runtime, gpu, 200'000);
    const auto step = [&] {
      std::vector<Work> works;
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        works.push_back(gradients[i].start("gradient " + std::to_string(i)));
      }
      for (const Work& work : works) work.wait_on(gpu.stream.handle());
    };
    check(machine.cuda.calls("cuEventSynchronize") == 0, "nor does the first");
    for (int i = 0; i < 5; ++i) step();
    together.arrive_and_wait();
    if (counts) count(machine, before);
    together.arrive_and_wait();
    for (int i = 0; i < 10; ++i) step();
    together.arrive_and_wait();
    if (counts) count(machine, after);
    together.arrive_and_wait();
  });
  CHECK(before == after);
  CHECK(machine.cuda.calls("cuEventSynchronize") == 0);
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}
