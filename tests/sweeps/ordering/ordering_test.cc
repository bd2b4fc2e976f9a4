// SPDX-License-Identifier: Apache-2.0
// The streams of several ranks may run in any order that waits leave: the collectives, in orders
// drawn with many seeds. A missing wait gives a wrong result in one of them, and a report of
// ThreadSanitizer in any (stream_fiber.h).
#include <algorithm>
#include <cstdlib>

#include "tests/support/gpu/gpu_aware_messages.h"
#include "tests/support/gpu/gpu_ranks.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/harness/sanitizers.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr int kRanks = 3;
constexpr std::size_t kSizes[] = {30, 3000, 20'001};  // a one-shot, a two-shot, several chunks

/// The first one, and the one behind the last: RONDE_TEST_SEEDS of them, or RONDE_TEST_SEED alone.
std::pair<unsigned, unsigned> seeds() {
  const auto number = [](const char* name, unsigned otherwise) {
    const char* const text = std::getenv(name);
    return text != nullptr ? static_cast<unsigned>(std::stoul(text)) : otherwise;
  };
  const unsigned first = number("RONDE_TEST_SEED", 0);
  return first > 0 ? std::pair{first, first + 1}
                   : std::pair{1U, 1 + number("RONDE_TEST_SEEDS", plain_or_sanitized(10U, 1U))};
}

/// What a rank brings from an element on: no two chunks are the same.
std::vector<float> values_of(int rank, int step, std::size_t begin, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(1 + rank + 10 * step) + static_cast<float>((begin + i) / 512);
  }
  return values;
}

/// The result on a rank.
std::vector<float> result_of(Collective kind, std::size_t count, int step, int rank) {
  if (kind == Collective::Broadcast) return values_of(0, step, 0, count);
  const bool is_divided = kind == Collective::Reducescatter || kind == Collective::Alltoall;
  const std::size_t begin = is_divided ? static_cast<std::size_t>(rank) * count : 0;
  std::vector<float> sum(count), parts;
  for (int from = 0; from < kRanks; ++from) {
    const std::vector<float> part = values_of(from, step, begin, count);
    parts.insert(parts.end(), part.begin(), part.end());
    std::transform(part.begin(), part.end(), sum.begin(), sum.begin(), std::plus());
  }
  return kind == Collective::Allgather || kind == Collective::Alltoall ? parts : sum;
}

/// What the program's stream has copied aside.
struct Kept {
  GpuTensor tensor;
  std::vector<float> expected;
  std::string what;
};

/// Collectives for which a stream waits, and no thread: behind each of them it keeps the result,
/// and the program's stream writes over input and output, which the next one uses. Every other time
/// sums are in place, and the stream that waits is another than the one that wrote the input.
void exchange(Runtime& runtime, ProgramGpu& gpu) {
  cuda::Stream other(gpu.context);
  const int rank = runtime.topology().rank;
  std::vector<Kept> kept;
  for (const std::size_t count : kSizes) {
    const std::size_t all = kRanks * count;
    GpuTensor input(gpu, all * sizeof(float));
    GpuTensor output(gpu, all * sizeof(float));
    for (int step = 0; step < 2; ++step) {
      for (const Collective kind :
           {Collective::Allreduce, Collective::Broadcast, Collective::Allgather,
            Collective::Reducescatter, Collective::Alltoall}) {
        const bool is_divided = kind == Collective::Reducescatter || kind == Collective::Alltoall;
        Request request;
        request.kind = kind;
        request.shape = {static_cast<std::int64_t>(is_divided ? all : count)};
        request.input = input.data();
        const bool is_in_place = kind == Collective::Allreduce && step > 0;
        GpuTensor& written = is_in_place ? input : output;
        request.output = written.data();
        gpu.place(request);
        input.write(bytes_of(values_of(rank, step, 0, all)));
        output.write(bytes_of(std::vector<float>(all, -1)));
        cuda::Stream& reader = step > 0 ? other : gpu.stream;
        runtime.submit(std::move(request)).wait_on(reader.handle());
        std::vector<float> expected = result_of(kind, count, step, rank);
        GpuTensor result(gpu, expected.size() * sizeof(float));
        reader.copy(reinterpret_cast<cuda::DevicePointer>(result.data()),
                    reinterpret_cast<cuda::DevicePointer>(written.data()),
                    expected.size() * sizeof(float), "keeping a result");
        const cuda::Event kept_now(gpu.context);
        reader.record(kept_now);
        gpu.stream.wait_for(kept_now);
        input.write(bytes_of(std::vector<float>(all, -2)));
        kept.push_back({std::move(result), std::move(expected),
                        "collective " + std::to_string(static_cast<int>(kind)) + " of " +
                            std::to_string(count) + " elements in step " + std::to_string(step)});
      }
    }
    static_cast<void>(input.read());  // the driver frees memory that work still uses
  }
  for (const Kept& each : kept) {
    const Bytes bytes = each.tensor.read();
    check(std::memcmp(bytes.data(), each.expected.data(), bytes.size()) == 0,
          each.what + " on rank " + std::to_string(rank));
  }
}

/// Fused sums, each of the one before, in place.
void chain_sums(Runtime& runtime, ProgramGpu& gpu) {
  std::vector<GpuSum> sums;
  for (const std::size_t count : kSizes) sums.emplace_back(runtime, gpu, count);
  for (int step = 0; step < 4; ++step) {
    std::vector<Work> works;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      Request request = sums[i].request("sum " + std::to_string(i));
      if (step > 0) request.op = ReduceOp::Average;
      works.push_back(runtime.submit(std::move(request)));
    }
    for (const Work& work : works) work.wait_on(gpu.stream.handle());
  }
  for (const GpuSum& sum : sums) sum.check_values(kRanks * (kRanks + 1) / 2, "a chain of sums");
}

template <typename Run>
void run_seeds(Run run) {
  const auto [first, end] = seeds();
  for (unsigned seed = first; seed < end; ++seed) {
    INFO("RONDE_TEST_SEED=" << seed << " repeats this order as far as threads allow");
    run(seed);
  }
}

void run(const Way& way, bool by_mpi) {
  run_seeds([&](unsigned seed) {
    CudaRanks machine(kRanks, way, {.devices = 2, .disorder = seed});
    GpuAwareMessages messages{inproc::Group(kRanks)};
    if (by_mpi) machine.options.gpu_aware_mpi = messages.factory();
    machine.run([&](Runtime& runtime, ProgramGpu& gpu) {
      exchange(runtime, gpu);
      chain_sums(runtime, gpu);
      check((counter_of(runtime, "cuda", "mpi_operations") > 0) == by_mpi, "by MPI, or not");
    });
  });
}

void run_by_nccl() {
  run_seeds([](unsigned seed) {
    NcclRanks machine(kRanks, {}, {.devices = kRanks, .disorder = seed});
    machine.run([](Runtime& runtime, ProgramGpu& gpu) {
      exchange(runtime, gpu);
      chain_sums(runtime, gpu);
    });
  });
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const Way& way : {kIpc, kDirect, kStaged,
                         Way{.name = "ipc, mapped each time", .cache = false, .direct_bytes = 1},
                         Way{.name = "staged, nothing kept", .ipc = false, .cache = false}}) {
    add_case("cuda ordering: collectives in many orders of the streams, " + std::string(way.name),
             "", [way] { run(way, false); });
  }
  add_case("cuda ordering: collectives in many orders of the streams, by MPI", "",
           [] { run(kStaged, true); });
  add_case("cuda ordering: collectives in many orders of the streams, by NCCL", "", run_by_nccl);
  return true;
}();

}  // namespace
