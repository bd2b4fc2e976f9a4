// SPDX-License-Identifier: Apache-2.0
// The backend of GPUs without NCCL on fake GPUs: its results have the bits of the CPU's, whichever
// way data takes; which ways those are, and what becomes of mappings.
#include <catch2/catch.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fakes/stream_fiber.h"
#include "tests/support/gpu/gpu_exercise.h"
#include "tests/support/gpu/gpu_ranks.h"
#include "tests/support/harness/captured_errors.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/harness/sanitizers.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

/// Elements of a float that fit a one-shot, need a two-shot, and several chunks.
constexpr std::size_t kSmall = 100;
constexpr std::size_t kLarge = 5000;
constexpr std::size_t kHuge = 40'000;
constexpr int kSteps = 50;

CudaOptions direct_options(const FakeMachine& machine) {
  CudaOptions options = cuda_options_of(machine);
  options.ipc_direct_bytes = 4 * kLarge;
  return options;
}

/// Memory on the program's GPU that the driver itself has made, at an address to look at.
std::uint64_t place_of(const GpuSum& sum) {
  return reinterpret_cast<std::uint64_t>(sum.tensor().data());
}

constexpr std::size_t kCount = 50'000;

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
    {.name = "staged, nothing kept", .ipc = false, .cache = false}};

[[maybe_unused]] const bool kRegistered = [] {
  for (const auto& [what, exercise] : kExercises) {
    add_case("cuda: " + what + " have the bits of shared memory, with ipc and without", "",
             [body = exercise] {
               const Layout layouts[] = {{3, 2}, {2, 1}, {1, 1}};
               const Layout& layout = layouts[GENERATE(range(0, plain_or_sanitized(3, 1)))];
               const Way way = GENERATE(from_range(kWays));
               INFO(way.name << ", " << layout.ranks << " ranks, " << layout.devices << " GPUs");
               FakeMachine machine({.devices = layout.devices});
               run_gpu_ranks(machine, layout.ranks, layout.devices, cuda_options_of(machine, way),
                             body);
             });
  }
  return true;
}();

}  // namespace

TEST_CASE("cuda: elements at odd addresses, elsewhere on each rank, are reduced in their place") {
  const Way way = GENERATE(kIpc, kDirect, kStaged);
  const Collective kind = GENERATE(Collective::Allreduce, Collective::Reducescatter);
  const std::size_t count = GENERATE(8, 20'000);
  const std::size_t unit = GENERATE(2, 4);  // bytes; addresses of floats are multiples of 4
  CAPTURE(way.name, kind, count, unit);
  FakeMachine machine;
  run_gpu_ranks(machine, 2, 1, cuda_options_of(machine, way),
                [&](Runtime& runtime, ProgramGpu& gpu) {
                  const auto rank = static_cast<std::size_t>(runtime.topology().rank);
                  const std::size_t offset = unit * (2 * rank + 1);
                  const auto surrounded = [&](std::size_t elements, float value) {
                    Bytes bytes(offset, std::byte{0x5a});
                    const Bytes values = bytes_of(std::vector<float>(elements, value));
                    bytes.insert(bytes.end(), values.begin(), values.end());
                    bytes.resize(bytes.size() + 8, std::byte{0x5a});
                    return bytes;
                  };
                  const bool in_place = kind == Collective::Allreduce;
                  const std::size_t results = in_place ? count : count / 2;
                  const GpuTensor input(gpu, surrounded(count, static_cast<float>(1 + rank)));
                  const GpuTensor separate(gpu, surrounded(results, -1));
                  const GpuTensor& output = in_place ? input : separate;
                  Request request;
                  request.kind = kind;
                  request.name = "odd";
                  request.shape = {static_cast<std::int64_t>(count)};
                  request.input = static_cast<std::byte*>(input.data()) + offset;
                  request.output = static_cast<std::byte*>(output.data()) + offset;
                  gpu.place(request);
                  runtime.run(std::move(request));
                  check(output.read() == surrounded(results, 3), "the sums, and nothing else");
                });
}

TEST_CASE("cuda staged: RONDE_CUDA_IPC=0 stages everything, and says nothing of it") {
  const CapturedErrors errors;
  FakeMachine machine;
  run_gpu_ranks(machine, 3, 1, cuda_options_of(machine, kStaged),
                [](Runtime& runtime, ProgramGpu& gpu) {
                  sum_on_gpu(runtime, gpu, kCount);
                  check_counters(runtime, {{"staged_operations", 1},
                                           {"staged_bytes", 4 * kCount},
                                           {"ipc_operations", 0},
                                           {"flag_syncs", 0}});
                });
  CHECK(errors.text().empty());
  CHECK(machine.cuda.calls("cuIpcGetMemHandle") == 0);
}

TEST_CASE("cuda staged: pieces of any size give the same sums") {
  FakeMachine machine;
  CudaOptions options = cuda_options_of(machine, kStaged);
  options.staged_piece_bytes = GENERATE(16, 4096, 65536, 1 << 20);
  run_gpu_ranks(machine, 2, 1, options, [](Runtime& runtime, ProgramGpu& gpu) {
    for (const std::size_t count : {1, 3, 4, 5, 4095, 4097}) sum_on_gpu(runtime, gpu, count);
  });
}

TEST_CASE("cuda staged: page-locked memory is kept with the cache, and given up without") {
  const bool cache = GENERATE(true, false);
  FakeMachine machine;
  CudaOptions options = cuda_options_of(machine, kStaged);
  options.registration_cache = cache;
  run_gpu_ranks(machine, 1, 1, options, [&](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kCount);
    const int before = machine.cuda.calls("cuMemHostAlloc");
    for (int step = 0; step < kSteps; ++step) sum_on_gpu(runtime, gpu, kCount);
    const int more = machine.cuda.calls("cuMemHostAlloc") - before;
    check(cache ? more == 0 : more >= 3 * kSteps, std::to_string(more) + " blocks pinned");
  });
}

TEST_CASE("cuda staged: what is larger than it keeps is pinned by its own size") {
  constexpr std::int64_t kLength = std::int64_t{33} << 20;
  FakeMachine machine;
  run_gpu_ranks_unchecked(machine, 1, 1, cuda_options_of(machine, kStaged),
                          [&](Runtime& runtime, ProgramGpu& gpu, const Kill&) {
                            const GpuTensor input(gpu, kLength), output(gpu, kLength);
                            Request request;
                            request.kind = Collective::Allgather;
                            request.dtype = DataType::U8;
                            request.shape = {kLength};
                            request.input = input.data();
                            request.output = output.data();
                            gpu.place(request);
                            machine.cuda.fail("cuMemHostAlloc", cuda::kOutOfMemory);
                            const Death death = death_of([&] { runtime.run(std::move(request)); });
                            check_contains(death.text, "pinning 34603008 bytes of host memory");
                          });
}

TEST_CASE("cuda staged: a rank without memory for its result fails alone, the others get theirs") {
  FakeMachine machine;
  const CudaOptions options = cuda_options_of(machine, GENERATE(kIpc, kStaged));
  run_gpu_ranks(machine, 2, 1, options, [](Runtime& runtime, ProgramGpu& gpu) {
    exercise_missing_results(runtime, gpu);
    sum_on_gpu(runtime, gpu, kCount);
  });
}

TEST_CASE(
    "cuda ipc: small allreduces take one synchronisation, large ones two a chunk, none is staged") {
  FakeMachine machine;
  run_gpu_ranks(machine, 3, 1, cuda_options_of(machine), [](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kSmall);
    check_counters(runtime, {{"one_shots", 1}, {"two_shots", 0}, {"flag_syncs", 1}});
    sum_on_gpu(runtime, gpu, kLarge);
    check_counters(runtime, {{"one_shots", 1}, {"two_shots", 1}, {"flag_syncs", 3}});
    sum_on_gpu(runtime, gpu, kHuge);  // a two-shot for each of three chunks
    check_counters(runtime, {{"two_shots", 4},
                             {"ipc_operations", 3},
                             {"staged_operations", 0},
                             {"staged_bytes", 0},
                             {"packed_bytes", 4 * (kSmall + kLarge + kHuge)}});
  });
}

TEST_CASE("cuda ipc: mappings are opened once with the cache, and for each operation without") {
  const bool cache = GENERATE(true, false);
  FakeMachine machine;
  CudaOptions options = cuda_options_of(machine);
  options.registration_cache = cache;
  run_gpu_ranks(machine, 3, 1, options, [&](Runtime& runtime, ProgramGpu& gpu) {
    for (int step = 0; step < kSteps; ++step) sum_on_gpu(runtime, gpu, kLarge);
    // The trial opens, and the first operation uses what it has opened. The registration cache
    // counts nothing: a fusion buffer would always be hit.
    check_counters(runtime, {{"fusion_mappings", cache ? 0 : 2 * (kSteps - 1)},
                             {"registration_hits", 0},
                             {"registration_misses", 0}});
  });
  CHECK(machine.cuda.calls("cuIpcOpenMemHandle_v2") == 3 * (cache ? 2 : 2 * kSteps));
  CHECK(machine.cuda.calls("cuIpcCloseMemHandle") == machine.cuda.calls("cuIpcOpenMemHandle_v2"));
}

TEST_CASE(
    "cuda ipc: tensors above the limit are mapped themselves, and neither packed nor copied") {
  const bool cache = GENERATE(true, false);
  FakeMachine machine;
  CudaOptions options = direct_options(machine);
  options.registration_cache = cache;
  run_gpu_ranks(machine, 2, 1, options, [&](Runtime& runtime, ProgramGpu& gpu) {
    GpuSum sum(runtime, gpu, kLarge);
    for (int step = 0; step < kSteps; ++step) {
      sum.write(static_cast<float>(runtime.topology().rank + 1));
      sum.check_result(sum.start());
    }
    check_counters(runtime, {{"direct", kSteps},
                             {"packed_bytes", 0},
                             {"registration_hits", cache ? kSteps - 1 : 0},
                             {"registration_misses", cache ? 1 : kSteps}});
    sum_on_gpu(runtime, gpu, kLarge - 1);
    check_counters(runtime, {{"direct", kSteps}});  // smaller ones are packed
  });
}

TEST_CASE("cuda ipc: mapped tensors share no blocks of the driver's with others") {
  FakeMachine machine;
  CudaOptions options = direct_options(machine);
  options.ipc_block_bytes = std::uint64_t{1} << 40;
  run_gpu_ranks(machine, 2, 1, options, [](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kLarge);
    check_counters(runtime, {{"direct", 0}, {"packed_bytes", 4 * kLarge}});
  });
}

TEST_CASE("cuda ipc: mapped tensors are freed and their addresses used again, with right results") {
  std::mutex mutex;
  std::set<std::pair<int, std::uint64_t>> places;
  int allocations = 0;
  FakeMachine machine;
  run_gpu_ranks(machine, 2, 1, direct_options(machine), [&](Runtime& runtime, ProgramGpu& gpu) {
    for (int step = 0; step < kSteps; ++step) {
      // Sizes vary, so that other allocations take the place of earlier ones.
      const std::size_t count = kLarge * static_cast<std::size_t>(1 + (7 * step) % 5);
      GpuSum sum(runtime, gpu, count);
      {
        const std::lock_guard lock(mutex);
        places.emplace(runtime.topology().rank, place_of(sum));
        ++allocations;
      }
      sum.check_result(sum.start());
    }
    check_counters(runtime, {{"direct", kSteps}});
  });
  // Else nothing was tried. Fibers have mapped memory where its owner has it, which stays there.
  CHECK((static_cast<int>(places.size()) < allocations || fake::kStreamsAreFibers));
  CHECK(machine.cuda.calls("cuIpcCloseMemHandle") == machine.cuda.calls("cuIpcOpenMemHandle_v2"));
}

TEST_CASE("cuda ipc: an operation that exceeds the limit of bytes closes the mappings of tensors") {
  FakeMachine machine;
  CudaOptions options = direct_options(machine);
  options.registration_cache_bytes = 5 * kLarge;
  run_gpu_ranks(machine, 2, 1, options, [&](Runtime& runtime, ProgramGpu& gpu) {
    std::deque<GpuSum> sums;
    for (const int mapped : {1, 0, 1}) {
      GpuSum& sum = sums.emplace_back(runtime, gpu, kLarge);
      sum.check_result(sum.start());
      check_counters(runtime, {{"registration_entries", mapped}});
    }
    check_counters(runtime, {{"direct", 3}, {"registration_evicted_for_room", 2}});
  });
}

TEST_CASE("cuda ipc: a tensor that a rank cannot map is packed from then on, with one line") {
  const CapturedErrors errors;
  FakeMachine machine({.devices = 2});
  run_gpu_ranks(machine, 2, 2, direct_options(machine), [&](Runtime& runtime, ProgramGpu& gpu) {
    GpuSum sum(runtime, gpu, kLarge);
    sum.check_result(sum.start());
    check_counters(runtime, {{"direct", 1}});
    GpuSum other(runtime, gpu, kHuge);
    runtime.run(barrier_request());
    if (runtime.topology().rank == 0) {
      machine.cuda.fail_on(1, "cuIpcOpenMemHandle_v2", cuda::kMapFailed);
    }
    runtime.run(barrier_request());
    other.check_result(other.start());
    for (int step = 0; step < 3; ++step) sum_on_gpu(runtime, gpu, kHuge);
    check_counters(runtime, {{"direct", 1}, {"ipc_operations", 5}});  // none mapped since
  });
  CHECK(occurrences(errors.text(), "\n") == 1);
  CHECK_THAT(errors.text(), Catch::Contains("warning: tensors cannot be mapped by other ranks") &&
                                Catch::Contains("rank 1: CUDA failed while mapping memory of rank "
                                                "0: cuIpcOpenMemHandle_v2"));
}

TEST_CASE("cuda ipc: tensors that cannot be exported are packed") {
  FakeMachine machine;
  run_gpu_ranks(machine, 2, 1, direct_options(machine), [&](Runtime& runtime, ProgramGpu& gpu) {
    GpuSum sum(runtime, gpu, kLarge);
    if (runtime.topology().rank == 1) machine.cuda.forbid_ipc(place_of(sum));
    sum.check_result(sum.start());
    check_counters(runtime, {{"direct", 0}, {"packed_bytes", 4 * kLarge}});
    sum_on_gpu(runtime, gpu, kLarge);
    check_counters(runtime, {{"direct", 1}});  // others are mapped
  });
}
