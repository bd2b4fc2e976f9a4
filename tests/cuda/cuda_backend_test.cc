// SPDX-License-Identifier: Apache-2.0
// The backend of GPUs without NCCL on fake GPUs: its results have the bits of the CPU's, whichever
// way data takes and in whatever order the streams run.
#include <catch2/catch.hpp>
#include <functional>
#include <vector>

#include "gpu_exercise.h"
#include "gpu_ranks.h"
#include "tests/support/sanitizers.h"

namespace {

using namespace ronde;
using namespace ronde::test;

struct Layout {
  int ranks;
  int devices;
};

const std::vector<Way> kWays = {
    kIpc,
    kDirect,
    kStaged,
    {.name = "ipc, nothing registered", .cache = false},
    {.name = "ipc, mapped each time", .cache = false, .direct_bytes = 1},
    {.name = "staged, nothing kept", .ipc = false, .cache = false},
    {.name = "ipc by events", .handover = IpcHandover::Events},
    {.name = "ipc by flags", .handover = IpcHandover::Flags},
    {.name = "ipc by kernels", .handover = IpcHandover::Kernels}};

/// `disorder`: of the fake's options.
void on_every_way(const Layout& layout, unsigned disorder,
                  const std::function<void(Runtime&, ProgramGpu&)>& body) {
  const Way way = GENERATE(from_range(kWays));
  INFO(way.name << ", " << layout.ranks << " ranks, " << layout.devices << " GPUs, disorder "
                << disorder);
  FakeMachine machine({.devices = layout.devices, .disorder = disorder});
  run_gpu_ranks(machine, layout.ranks, layout.devices, cuda_options_of(machine, way),
                [&](Runtime& runtime, ProgramGpu& gpu) {
                  body(runtime, gpu);
                  if (way.handover == IpcHandover::Auto || layout.ranks == 1) return;
                  sum_on_gpu(runtime, gpu, 20'000);
                  check_handovers(runtime, way.handover);
                });
}

void in_order(const std::function<void(Runtime&, ProgramGpu&)>& body) {
  const std::vector<Layout> layouts = {{3, 2}, {2, 1}, {1, 1}};
  const int which = GENERATE(range(0, plain_or_sanitized(3, 1)));
  on_every_way(layouts[static_cast<std::size_t>(which)], 0, body);
}

void in_disorder(const std::function<void(Runtime&, ProgramGpu&)>& body) {
  const std::vector<Layout> layouts = {{3, 1}, {2, 2}, {3, 2}, {2, 1}};
  const int seed = GENERATE(range(1, plain_or_sanitized(5, 3)));
  on_every_way(layouts[static_cast<std::size_t>(seed - 1)], static_cast<unsigned>(seed), body);
}

/// Without a wait between them, each on the result of the one before.
void exercise_chains(Runtime& runtime, ProgramGpu& gpu) {
  constexpr int kSteps = 4;
  const int size = runtime.topology().size;
  std::vector<GpuSum> sums;
  for (const std::size_t count : {10, 3000, 40'000}) sums.emplace_back(runtime, gpu, count);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Work> works;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      Request request = sums[i].request("sum " + std::to_string(i));
      if (step > 0) request.op = ReduceOp::Average;
      works.push_back(runtime.submit(std::move(request)));
    }
    for (const Work& work : works) work.wait_on(gpu.stream.handle());
  }
  for (const GpuSum& sum : sums) {
    sum.check_values(static_cast<float>(size * (size + 1) / 2), "a chain of sums");
  }
}

}  // namespace

TEST_CASE("cuda: allreduces have the bits of shared memory, by ipc and staged") {
  in_order(exercise_allreduces);
}

TEST_CASE("cuda: elements that travel as halves have the bits of shared memory") {
  in_order(exercise_wire_dtypes);
}

TEST_CASE("cuda: exchanges have the bits of shared memory, by ipc and staged") {
  in_order(exercise_exchanges);
}

TEST_CASE("cuda: messages arrive, staged through the host") {
  in_order(exercise_messages);
}

TEST_CASE("cuda: tensors of all sizes have the bits of shared memory, by ipc and staged") {
  in_order(exercise_sizes);
}

TEST_CASE("cuda: reductions have their bits in any order that events leave") {
  in_disorder(exercise_sizes);
}

TEST_CASE("cuda: exchanges have their bits in any order that events leave") {
  in_disorder(exercise_exchanges);
}

TEST_CASE("cuda: chains without a wait have their sums in any order that events leave") {
  in_disorder(exercise_chains);
}
