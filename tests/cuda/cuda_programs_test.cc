// SPDX-License-Identifier: Apache-2.0
// What programs do with GPUs: process sets, joins, groups, other orders, and both kinds of memory;
// and the order of what they and Ronde queue there, by events alone.
#include <barrier>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/gpu/gpu_exercise.h"
#include "tests/support/gpu/gpu_ranks.h"
#include "tests/support/harness/sanitizers.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr std::size_t kCount = 5000;

/// By CUDA IPC, staged, and by NCCL, with a GPU for each rank.
void run_either_way(int size, const std::function<void(Runtime& runtime, ProgramGpu& gpu)>& body) {
  const bool by_nccl = GENERATE(false, true);
  if (by_nccl) return NcclRanks(size).run(body);
  const Way way = GENERATE(kIpc, kStaged);
  INFO(way.name);
  CudaRanks(size, way, {.devices = size}).run(body);
}

}  // namespace

TEST_CASE("cuda and nccl programs: process sets that overlap are made, used and removed") {
  run_either_way(3, [](Runtime& runtime, ProgramGpu& gpu) {
    for (int round = 0; round < 3; ++round) {
      std::vector<ProcessSet> sets;
      for (const std::vector<int>& ranks : {std::vector{2, 0}, {0, 1}, {1, 2}}) {
        sets.push_back(runtime.add_process_set(ranks));
      }
      for (const std::size_t count : {std::size_t{10}, 10 * kCount}) {
        for (const ProcessSet set : sets) {
          if (runtime.rank_in(set)) sum_on_gpu(runtime, gpu, count, set);
        }
        sum_on_gpu(runtime, gpu, count);
      }
      for (const ProcessSet set : sets) runtime.remove_process_set(set);
    }
  });
}

TEST_CASE("cuda and nccl programs: ranks that have joined bring nothing, on a GPU of their own") {
  const bool at_once = GENERATE(true, false);
  run_either_way(2, [&](Runtime& runtime, ProgramGpu& gpu) {
    if (!at_once) sum_on_gpu(runtime, gpu, kCount);
    if (runtime.topology().rank == 0) {
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max}) {
        GpuSum sum(runtime, gpu, kCount);
        sum.write(-4.0F);
        Request request = sum.request("left");
        request.op = op;
        runtime.submit(std::move(request)).wait();
        sum.check_values(-4.0F, "what is left");
      }
    }
    const Work joined = runtime.submit(join_request());
    joined.wait();
    check(joined.last_rank() == 0, "rank 0 was last");
    sum_on_gpu(runtime, gpu, kCount);
  });
}

TEST_CASE("cuda and nccl programs: a rank without memory for its result fails alone") {
  run_either_way(GENERATE(2, 3), [](Runtime& runtime, ProgramGpu& gpu) {
    exercise_missing_results(runtime, gpu);
    sum_on_gpu(runtime, gpu, kCount);
  });
}

TEST_CASE("cuda programs: what a rank has exported is closed by the others before it is freed") {
  CudaRanks machine(3, GENERATE(kIpc, kDirect), {.freeing_mapped_fails = true});
  const bool is_removed = GENERATE(true, false);
  std::vector<std::unique_ptr<GpuSum>> kept(3);  // the program's own tensors
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
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
  machine.check_clean();
}

TEST_CASE("cuda streams: sums are queued ahead of a held stream, and read no input before it") {
  const Way way = GENERATE(kIpc, kDirect, kStaged);
  const bool all_are_held = GENERATE(true, false);
  CAPTURE(way.name, all_are_held);
  std::barrier together(2);
  CudaRanks machine(2, way);
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    const bool is_held = all_are_held || runtime.topology().rank == 1;
    GpuSum sum(runtime, gpu, kCount);
    if (is_held) {
      sum.write(-5.0F);
      static_cast<void>(sum.read());
      machine.cuda.hold(gpu.stream.handle());
      sum.write(static_cast<float>(runtime.topology().rank + 1));
    }
    Work last;
    // By ipc as many as one likes are queued; what is staged is not even that.
    for (int step = 0; step < (way.ipc ? 20 : 1); ++step) {
      Request request = sum.request("gradient");
      if (step > 0) request.op = ReduceOp::Average;
      last = runtime.submit(std::move(request));
      if (way.ipc) last.wait_on(gpu.stream.handle());
      check(!last.done(), "only queued");
    }
    check(!last.wait_for(std::chrono::milliseconds(20)), "not done before its input is there");
    together.arrive_and_wait();
    if (is_held) machine.cuda.release(gpu.stream.handle());
    sum.check_result(last);
  });
}

TEST_CASE("cuda streams: a step of training waits for no GPU, and makes nothing that was there") {
  const Way way = GENERATE(kIpc, kDirect, kStaged);
  INFO(way.name);
  constexpr int kTensors = plain_or_sanitized(600, 200);  // more than one launch packs
  CudaRanks machine(2, way);
  std::vector<int> calls;  // counted while both ranks wait
  std::barrier together(2, [&]() noexcept {
    int sum = 0;
    for (const char* const unwanted :
         {"cuStreamSynchronize", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostAlloc", "cuMemFreeHost",
          "cuModuleLoadData", "cuIpcOpenMemHandle_v2", "cuStreamCreateWithPriority"}) {
      sum += machine.cuda.calls(unwanted);
    }
    calls.push_back(sum);
  });
  machine.options.fusion_bytes = 1 << 20;
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
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
    for (const int steps : {5, 10}) {
      for (int i = 0; i < steps; ++i) step();
      together.arrive_and_wait();
    }
  });
  REQUIRE(calls.size() == 2);
  CHECK(calls[0] == calls[1]);
}
