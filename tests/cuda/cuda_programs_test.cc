// SPDX-License-Identifier: Apache-2.0
// What programs do with GPUs: process sets, joins, groups, other orders, and both kinds of memory;
// and the order of what they and Ronde queue there, by events alone.
#include <algorithm>
#include <barrier>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/gpu/gpu_ranks.h"
#include "tests/support/harness/sanitizers.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr std::size_t kCount = 5000;

constexpr Way kUnkept{.name = "ipc, nothing kept", .cache = false, .direct_bytes = 1};

/// On both ways.
CudaOptions either_way(const FakeMachine& machine) {
  return cuda_options_of(machine, GENERATE(kIpc, kStaged));
}

}  // namespace

TEST_CASE("cuda programs: process sets have GPUs of their own, and are made and removed") {
  FakeMachine machine;
  run_gpu_ranks(machine, 3, 1, either_way(machine), [&](Runtime& runtime, ProgramGpu& gpu) {
    const int rank = runtime.topology().rank;
    for (int round = 0; round < 3; ++round) {
      const ProcessSet pair = runtime.add_process_set({2, 0});
      const ProcessSet other = runtime.add_process_set({0, 1});
      sum_on_gpu(runtime, gpu, kCount);
      for (const auto& [set, outsider] : {std::pair{pair, 1}, std::pair{other, 2}}) {
        if (rank == outsider) continue;
        for (const std::size_t count : {std::size_t{10}, 10 * kCount}) {
          sum_on_gpu(runtime, gpu, count, set);
        }
      }
      runtime.remove_process_set(pair);
      runtime.remove_process_set(other);
    }
    sum_on_gpu(runtime, gpu, kCount);
  });
}

TEST_CASE("cuda programs: ranks that have joined bring nothing, on a GPU of their own") {
  FakeMachine machine({.devices = 2});
  const bool at_once = GENERATE(true, false);
  run_gpu_ranks(machine, 2, 2, either_way(machine), [&](Runtime& runtime, ProgramGpu& gpu) {
    const int rank = runtime.topology().rank;
    if (!at_once) sum_on_gpu(runtime, gpu, kCount);
    if (rank == 0) {
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max}) {
        GpuSum sum(runtime, gpu, kCount);
        sum.write(-4.0F);
        Request request = sum.request("left");
        request.op = op;
        runtime.submit(std::move(request)).wait();
        sum.check_values(-4.0F, "what is left");
      }
    }
    Request join;
    join.kind = Collective::Join;
    const Work joined = runtime.submit(join);
    joined.wait();
    check(joined.last_rank() == 0, "rank 0 was last");
    sum_on_gpu(runtime, gpu, kCount);
    check(machine.cuda.live().contexts > 0, "there are contexts");
  });
}

TEST_CASE("cuda programs: what a rank has exported is closed by the others before it is freed") {
  FakeMachine machine({.freeing_mapped_fails = true});
  CudaOptions options = cuda_options_of(machine);
  options.ipc_direct_bytes = GENERATE(0, 1);
  const bool is_removed = GENERATE(true, false);
  std::vector<std::unique_ptr<GpuSum>> kept(3);  // the program's own tensors
  run_gpu_ranks_unchecked(
      machine, 3, 1, options, [&](Runtime& runtime, ProgramGpu& gpu, const Kill&) {
        const auto rank = static_cast<std::size_t>(runtime.topology().rank);
        kept[rank] = std::make_unique<GpuSum>(runtime, gpu, kCount);
        kept[rank]->check_result(kept[rank]->start());
        const ProcessSet pair = runtime.add_process_set({0, 2});
        if (rank == 1 && is_removed) runtime.remove_process_set(pair);
        if (rank != 1) {
          kept[rank]->write(static_cast<float>(rank + 1));
          kept[rank]->check_result(runtime.submit(kept[rank]->request({}, pair)), pair);
          if (is_removed) runtime.remove_process_set(pair);
        }
        runtime.shutdown();
      });
  kept.clear();
  CHECK(machine.cuda.live() == FakeCuda::Live{});
}

TEST_CASE("cuda streams: inputs written behind a held stream are not read before it is released") {
  const Way way = GENERATE(kIpc, kDirect, kStaged);
  INFO(way.name);
  std::barrier together(2);
  FakeMachine machine;
  run_gpu_ranks(
      machine, 2, 1, cuda_options_of(machine, way), [&](Runtime& runtime, ProgramGpu& gpu) {
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
}

TEST_CASE("cuda streams: a result may be read on another stream that waits for it") {
  const Way way = GENERATE(kIpc, kDirect, kUnkept, kStaged);
  INFO(way.name);
  FakeMachine machine({.disorder = 3});
  run_gpu_ranks(
      machine, 2, 1, cuda_options_of(machine, way), [&](Runtime& runtime, ProgramGpu& gpu) {
        cuda::Stream other(gpu.context);
        for (int step = 0; step < 20; ++step) {
          GpuSum sum(runtime, gpu, kCount);
          const Work work = sum.start();
          work.wait_on(other.handle());
          const cuda::PinnedMemory values(gpu.context, kCount * sizeof(float));
          other.copy(values.address(), reinterpret_cast<cuda::DevicePointer>(sum.tensor().data()),
                     kCount * sizeof(float), "reading on another stream");
          gpu.context->call("waiting", &cuda::DriverApi::stream_synchronize, other.handle());
          const auto* const read = reinterpret_cast<const float*>(values.data());
          check(std::count(read, read + kCount, 3.0F) == kCount, "the sum");
          work.wait();
        }
      });
}

TEST_CASE("cuda streams: steps are queued ahead of a held stream, as many as one likes") {
  const Way way = GENERATE(kIpc, kDirect);
  INFO(way.name);
  constexpr int kSteps = 20;
  std::barrier together(2);
  FakeMachine machine;
  run_gpu_ranks(machine, 2, 1, cuda_options_of(machine, way),
                [&](Runtime& runtime, ProgramGpu& gpu) {
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
}

TEST_CASE("cuda streams: a step of training waits for no GPU, and makes nothing that was there") {
  const Way way = GENERATE(kIpc, kDirect, kStaged);
  INFO(way.name);
  constexpr int kTensors = plain_or_sanitized(600, 200);  // more than one launch packs
  const std::vector<const char*> unwanted = {"cuStreamSynchronize",   "cuMemAlloc_v2",
                                             "cuMemFree_v2",          "cuMemHostAlloc",
                                             "cuMemFreeHost",         "cuModuleLoadData",
                                             "cuIpcOpenMemHandle_v2", "cuStreamCreateWithPriority"};
  std::barrier together(2);
  std::vector<int> before, after;
  FakeMachine machine;
  const auto calls = [&] {
    std::vector<int> all;
    for (const char* const symbol : unwanted) all.push_back(machine.cuda.calls(symbol));
    return all;
  };
  CudaOptions options = cuda_options_of(machine, way);
  options.fusion_bytes = 1 << 20;
  run_gpu_ranks(machine, 2, 1, options, [&](Runtime& runtime, ProgramGpu& gpu) {
    const bool counts = runtime.topology().rank == 0;
    std::vector<GpuSum> gradients;
    for (int i = 0; i < kTensors; ++i) {
      gradients.emplace_back(runtime, gpu, static_cast<std::size_t>(10 + i % 7));
    }
    gradients.emplace_back(runtime, gpu, plain_or_sanitized(200'000U, 20'000U));
    const auto step = [&] {
      std::vector<Work> works;
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        works.push_back(gradients[i].start("gradient " + std::to_string(i)));
      }
      for (const Work& work : works) work.wait_on(gpu.stream.handle());
    };
    for (int i = 0; i < 5; ++i) step();
    together.arrive_and_wait();
    if (counts) before = calls();
    together.arrive_and_wait();
    for (int i = 0; i < 10; ++i) step();
    together.arrive_and_wait();
    if (counts) after = calls();
    together.arrive_and_wait();
  });
  CHECK(before == after);
}
