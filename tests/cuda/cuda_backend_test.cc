// SPDX-License-Identifier: Apache-2.0
// The backend of GPUs without NCCL on fake GPUs: its results have the bits of the CPU's, whichever
// way data takes; which ways those are, and what becomes of mappings.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "backends/gpu/kernels/segments.h"
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

/// Tensors from kLarge elements on are mapped themselves.
constexpr Way kLargeDirect{.name = "ipc, large ones mapped directly", .direct_bytes = 4 * kLarge};

/// Memory on the program's GPU that the driver itself has made, at an address to look at.
std::uint64_t place_of(const GpuSum& sum) {
  return reinterpret_cast<std::uint64_t>(sum.tensor().data());
}

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
               const int ranks = GENERATE(range(plain_or_sanitized(1, 3), 4));
               const int devices = ranks == 3 ? 2 : 1;
               const Way way = GENERATE(from_range(kWays));
               CAPTURE(way.name, ranks, devices);
               CudaRanks(ranks, way, {.devices = devices}).run(body);
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
  CudaRanks(2, way).run([&](Runtime& runtime, ProgramGpu& gpu) {
    const auto rank = static_cast<std::size_t>(runtime.topology().rank);
    const std::size_t offset = unit * (2 * rank + 1);
    const auto surrounded = [&](std::size_t elements, float value) {
      const Bytes values = bytes_of(std::vector<float>(elements, value));
      Bytes bytes(offset + values.size() + 8, std::byte{0x5a});
      std::memcpy(bytes.data() + offset, values.data(), values.size());
      return bytes;
    };
    const bool in_place = kind == Collective::Allreduce;
    const std::size_t results = in_place ? count : count / 2;
    const GpuTensor input(gpu, surrounded(count, static_cast<float>(1 + rank)));
    const GpuTensor separate(gpu, surrounded(results, -1));
    const GpuTensor& output = in_place ? input : separate;
    Request request;
    request.kind = kind;
    request.shape = {static_cast<std::int64_t>(count)};
    request.input = static_cast<std::byte*>(input.data()) + offset;
    request.output = static_cast<std::byte*>(output.data()) + offset;
    gpu.place(request);
    runtime.run(std::move(request));
    check(output.read() == surrounded(results, 3), "the sums, and nothing else");
  });
}

TEST_CASE(
    "cuda staged: RONDE_CUDA_IPC=0 stages everything, in pieces of any size, without a word") {
  const CapturedErrors errors;
  CudaRanks machine(3, kStaged);
  machine.options.staged_piece_bytes = GENERATE(16, 4096, 65536, 1 << 20);
  machine.run([](Runtime& runtime, ProgramGpu& gpu) {
    for (const std::size_t count : {1, 3, 4, 5, 4095, 4097}) sum_on_gpu(runtime, gpu, count);
    check_counters(runtime, {{"staged_operations", 6},
                             {"staged_bytes", 4 * (1 + 3 + 4 + 5 + 4095 + 4097)},
                             {"ipc_operations", 0},
                             {"flag_syncs", 0}});
  });
  CHECK(errors.text().empty());
  CHECK(machine.cuda.calls("cuIpcGetMemHandle") == 0);
}

TEST_CASE("cuda staged: page-locked memory is given up without the cache") {
  CudaRanks machine(1, {.name = "staged, nothing kept", .ipc = false, .cache = false});
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    for (int step = 0; step < kSteps; ++step) sum_on_gpu(runtime, gpu, kHuge);
  });
  CHECK(machine.cuda.calls("cuMemHostAlloc") >= 3 * kSteps);
}

TEST_CASE("cuda staged: what is larger than it keeps is pinned by its own size") {
  CudaRanks machine(1, kStaged);
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    GpuSum input(runtime, gpu, 33 << 18), output(runtime, gpu, 33 << 18);
    Request request = input.request();
    request.kind = Collective::Allgather;
    request.output = output.tensor().data();
    machine.cuda.fail("cuMemHostAlloc", cuda::kOutOfMemory);
    const Death death = death_of([&] { runtime.run(std::move(request)); });
    check_contains(death.text, "pinning 34603008 bytes of host memory");
  });
}

TEST_CASE(
    "cuda ipc: small allreduces take one synchronisation, large ones two a chunk, none is staged") {
  CudaRanks(3).run([](Runtime& runtime, ProgramGpu& gpu) {
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
  CudaRanks machine(3);
  machine.options.registration_cache = cache;
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
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
  CudaRanks machine(2, kLargeDirect);
  machine.options.registration_cache = cache;
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
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

TEST_CASE("cuda ipc: mapped tensors are freed and their addresses used again, with right results") {
  CudaRanks machine(2, kLargeDirect);
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    std::set<std::uint64_t> places;
    for (int step = 0; step < kSteps; ++step) {
      // Sizes vary, so that other allocations take the place of earlier ones.
      const std::size_t count = kLarge * static_cast<std::size_t>(1 + (7 * step) % 5);
      GpuSum sum(runtime, gpu, count);
      places.insert(place_of(sum));
      sum.check_result(sum.start());
    }
    check_counters(runtime, {{"direct", kSteps}});
    // Fibers have mapped memory where its owner has it, which stays there.
    check(places.size() < kSteps || fake::kStreamsAreFibers, "else nothing was tried");
  });
  CHECK(machine.cuda.calls("cuIpcCloseMemHandle") == machine.cuda.calls("cuIpcOpenMemHandle_v2"));
}

TEST_CASE("cuda ipc: an operation that exceeds the limit of bytes closes the mappings of tensors") {
  CudaRanks machine(2, kLargeDirect);
  machine.options.registration_cache_bytes = 5 * kLarge;
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
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
  CudaRanks machine(2, kLargeDirect, {.devices = 2});
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
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

TEST_CASE("cuda ipc: tensors that share blocks of the driver's or cannot be exported are packed") {
  const bool shares_blocks = GENERATE(true, false);
  CudaRanks machine(2, kLargeDirect);
  if (shares_blocks) machine.options.ipc_block_bytes = std::uint64_t{1} << 40;
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    GpuSum sum(runtime, gpu, kLarge);
    if (!shares_blocks && runtime.topology().rank == 1) machine.cuda.forbid_ipc(place_of(sum));
    sum.check_result(sum.start());
    check_counters(runtime, {{"direct", 0}, {"packed_bytes", 4 * kLarge}});
    sum_on_gpu(runtime, gpu, kLarge);
    check_counters(runtime, {{"direct", shares_blocks ? 0 : 1}});  // others are mapped
  });
}

namespace {

/// Adds what `look` returns of each launch of a kernel, which does nothing, to `seen`.
template <typename Look>
auto seen_in(FakeCuda& cuda, const std::string& kernel, Look look) {
  struct Seen {
    std::mutex mutex;
    std::vector<std::invoke_result_t<Look, const FakeCuda::Launch&>> launches;
  };
  const auto seen = std::make_shared<Seen>();
  cuda.add_kernel(kernel, [=](const FakeCuda::Launch& launch) {
    const std::lock_guard lock(seen->mutex);
    seen->launches.push_back(look(launch));
    return [] {};
  });
  return seen;
}

}  // namespace

TEST_CASE("cuda ipc: each rank reads the shares of a sum from the next rank on, itself last") {
  constexpr std::size_t kShare = 2000;  // a multiple of what shares are aligned to
  using Targets = std::vector<const void*>;
  CudaRanks machine(3, kIpc, {.devices = 3});
  const auto copies = seen_in(machine.cuda, "ronde_move_4", [](const FakeCuda::Launch& launch) {
    const auto how = launch.argument<cuda::kernels::CopyArguments>(0);
    Targets targets;
    for (std::uint32_t i = 0; i < how.count; ++i) targets.push_back(how.segments[i].target);
    return targets;
  });
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    GpuSum sum(runtime, gpu, 3 * kShare);
    sum.start().wait();
    Targets order;
    for (const int turn : {1, 2, 3}) {
      const auto from = static_cast<std::size_t>((runtime.topology().rank + turn) % 3);
      order.push_back(static_cast<const float*>(sum.tensor().data()) + from * kShare);
    }
    const std::lock_guard lock(copies->mutex);
    check(std::ranges::count(copies->launches, order) == 1, "it reads in another order");
  });
}

TEST_CASE("cuda ipc: few blocks read over a link between GPUs, and many within a GPU") {
  constexpr std::size_t kCount = 1 << 18;  // floats: tiles for more than a hundred blocks
  const int devices = GENERATE(1, 2);
  CudaRanks machine(2, kIpc, {.devices = devices});
  const auto blocks_of = [](const FakeCuda::Launch& launch) { return launch.blocks; };
  const auto reducing = seen_in(machine.cuda, "ronde_reduce_f32", blocks_of);
  const auto copying = seen_in(machine.cuda, "ronde_move_4", blocks_of);
  machine.options.fusion_bytes = kCount * sizeof(float);
  machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
    GpuSum sum(runtime, gpu, kCount);
    sum.start().wait();
  });
  REQUIRE_FALSE(reducing->launches.empty());
  const auto is_few = [](unsigned blocks) { return blocks <= 32; };
  const bool has_links = devices == 2;
  CHECK(std::ranges::all_of(reducing->launches, is_few) == has_links);
  // A rank packs within its GPU, and reads the other's share over the link.
  CHECK_FALSE(std::ranges::all_of(copying->launches, is_few));
  CHECK(std::ranges::any_of(copying->launches, is_few) == has_links);
}
