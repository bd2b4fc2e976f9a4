// SPDX-License-Identifier: Apache-2.0
// What programs do with GPUs: process sets, joins, groups, other orders, and both kinds of memory.
#include <catch2/catch.hpp>
#include <memory>
#include <string>

#include "gpu_ranks.h"
#include "tests/support/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr std::size_t kCount = 5000;

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

TEST_CASE("cuda programs: groups of tensors are reduced as one, and refused as one") {
  FakeMachine machine;
  run_gpu_ranks(machine, 2, 1, either_way(machine), [&](Runtime& runtime, ProgramGpu& gpu) {
    std::vector<GpuSum> sums;
    std::vector<Request> requests;
    for (int i = 0; i < 5; ++i) {
      sums.emplace_back(runtime, gpu, static_cast<std::size_t>(100 * i + 1));
      requests.push_back(sums.back().request("group " + std::to_string(i)));
    }
    const std::vector<Work> works = runtime.submit_group(std::move(requests));
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i].check_result(works[i]);
    check_counters(runtime, {{"fused_tensors", 5}}, "execution");
    GpuSum odd(runtime, gpu, kCount + static_cast<std::size_t>(runtime.topology().rank));
    GpuSum even(runtime, gpu, kCount);
    for (const Work& work : runtime.submit_group({odd.request("odd"), even.request("even")})) {
      check_contains(usage_error_of(work), "odd");
    }
    sum_on_gpu(runtime, gpu, kCount);
  });
}

TEST_CASE("cuda programs: broadcasts from several roots, submitted together") {
  FakeMachine machine;
  run_gpu_ranks(machine, 3, 1, either_way(machine), [&](Runtime& runtime, ProgramGpu& gpu) {
    const int size = runtime.topology().size;
    for (const bool as_group : {false, true}) {
      std::vector<GpuSum> sums;
      std::vector<Request> requests;
      for (int i = 0; i < 2 * size; ++i) {
        sums.emplace_back(runtime, gpu, kCount);
        requests.push_back(sums.back().request("from " + std::to_string(i)));
        requests.back().kind = Collective::Broadcast;
        requests.back().root = i % size;
      }
      std::vector<Work> works;
      if (as_group) {
        works = runtime.submit_group(std::move(requests));
      } else {
        for (Request& request : requests) works.push_back(runtime.submit(std::move(request)));
      }
      for (const Work& work : works) work.wait();
      for (int i = 0; i < 2 * size; ++i) {
        sums[static_cast<std::size_t>(i)].check_values(static_cast<float>(i % size + 1),
                                                       "what the root had");
      }
    }
  });
}

TEST_CASE("cuda programs: ranks may submit in different orders, on CPU and GPU") {
  constexpr int kTensors = 6;
  FakeMachine machine;
  run_gpu_ranks(machine, 2, 1, either_way(machine), [&](Runtime& runtime, ProgramGpu& gpu) {
    const int rank = runtime.topology().rank;
    for (int step = 0; step < 10; ++step) {
      std::vector<GpuSum> sums;
      std::vector<std::vector<float>> values;
      for (int i = 0; i < kTensors; ++i) {
        sums.emplace_back(runtime, gpu, kCount);
        values.emplace_back(kCount, static_cast<float>(rank + 1));
      }
      std::vector<Work> on_gpu(kTensors);
      std::vector<Work> on_cpu(kTensors);
      for (int i = 0; i < kTensors; ++i) {
        const auto which = static_cast<std::size_t>(rank == 0 ? i : kTensors - 1 - i);
        const std::string name = std::to_string(which);
        const auto start_on_cpu = [&] {
          on_cpu[which] = runtime.submit(sum_request(values[which], "cpu " + name));
        };
        if (rank == 0) start_on_cpu();
        on_gpu[which] = sums[which].start("gpu " + name);
        if (rank != 0) start_on_cpu();
      }
      for (std::size_t i = 0; i < kTensors; ++i) {
        sums[i].check_result(on_gpu[i]);
        on_cpu[i].wait();
        check(values[i] == std::vector<float>(kCount, 3.0F), "a sum on the CPU");
      }
    }
  });
}

TEST_CASE("cuda programs: what is on a GPU here and on the CPU there is refused, the job goes on") {
  FakeMachine machine;
  run_gpu_ranks(machine, 2, 1, either_way(machine), [&](Runtime& runtime, ProgramGpu& gpu) {
    GpuSum sum(runtime, gpu, kCount);
    std::vector<float> values(kCount, 1.0F);
    const bool on_gpu = runtime.topology().rank == 0;
    const Work work = on_gpu ? sum.start("both") : runtime.submit(sum_request(values, "both"));
    check_contains(usage_error_of(work), "both");
    sum_on_gpu(runtime, gpu, kCount);
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
