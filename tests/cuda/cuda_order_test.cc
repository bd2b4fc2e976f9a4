// SPDX-License-Identifier: Apache-2.0
// How ranks read from each other by CUDA IPC: in which order, and by how many blocks.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <vector>

#include "backends/gpu/kernels/segments.h"
#include "tests/support/gpu/gpu_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr int kRanks = 3;
constexpr std::size_t kEach = 800;    // elements of a tensor
constexpr std::size_t kShare = 1600;  // elements of a rank's share of six of them
constexpr std::size_t kTensors = 6;

/// What kernels that move words have copied: where to, and the first element as a float.
class Copies {
 public:
  explicit Copies(FakeCuda& cuda) {
    cuda.add_kernel("ronde_move_4", [this](const FakeCuda::Launch& launch) {
      return [this, how = launch.argument<cuda::kernels::CopyArguments>(0)] {
        for (std::uint32_t i = 0; i < how.count; ++i) run(how.segments[i]);
      };
    });
  }

  /// Of the copies into tensors of so many elements, the values, without repetitions.
  std::vector<float> values_into(const std::deque<GpuTensor>& tensors, std::size_t elements) {
    const std::lock_guard lock(mutex_);
    std::vector<float> values;
    for (const auto& [target, value] : copies_) {
      const bool is_here = std::any_of(tensors.begin(), tensors.end(), [&](const GpuTensor& each) {
        const auto offset =
            static_cast<const std::byte*>(target) - static_cast<const std::byte*>(each.data());
        return offset >= 0 && offset < static_cast<std::ptrdiff_t>(elements * sizeof(float));
      });
      if (is_here && (values.empty() || values.back() != value)) values.push_back(value);
    }
    return values;
  }

 private:
  void run(const cuda::kernels::SegmentCopy& segment) {
    std::memcpy(segment.target, segment.source, segment.count * sizeof(float));
    float value = 0;
    std::memcpy(&value, segment.source, sizeof value);
    const std::lock_guard lock(mutex_);
    copies_.emplace_back(segment.target, value);
  }

  std::mutex mutex_;
  std::vector<std::pair<const void*, float>> copies_;
};

/// Throws CheckFailed unless a rank has read from the others in turn, beginning with the next one,
/// and itself last: what it reads from rank r is `unit` times r.
void check_order(const std::vector<float>& values, int rank, float unit) {
  std::vector<float> expected;
  for (int turn = 1; turn <= kRanks; ++turn) {
    expected.push_back(unit * static_cast<float>((rank + turn) % kRanks));
  }
  check(values == expected, "rank " + std::to_string(rank) + " reads in another order");
}

}  // namespace

TEST_CASE("cuda ipc: each rank reads the shares of a sum from the next rank on, itself last") {
  FakeMachine machine({.devices = kRanks});
  Copies copies(machine.cuda);
  run_gpu_ranks(machine, kRanks, kRanks, cuda_options_of(machine),
                [&](Runtime& runtime, ProgramGpu& gpu) {
                  std::deque<GpuTensor> tensors;
                  std::vector<Request> requests;
                  for (std::size_t i = 0; i < kTensors; ++i) {
                    std::vector<float> values(kEach);
                    for (std::size_t j = 0; j < kEach; ++j) {
                      values[j] = static_cast<float>((i * kEach + j) / kShare);
                    }
                    GpuTensor& tensor = tensors.emplace_back(gpu, bytes_of(values));
                    Request& request = requests.emplace_back();
                    request.shape = {static_cast<std::int64_t>(kEach)};
                    request.input = request.output = tensor.data();
                    gpu.place(request);
                  }
                  for (const Work& work : runtime.submit_group(std::move(requests))) work.wait();
                  tensors.front().read();
                  check_order(copies.values_into(tensors, kEach), runtime.topology().rank, kRanks);
                });
}

TEST_CASE("cuda ipc: few blocks read over a link between GPUs, and many within a GPU") {
  constexpr std::size_t kCount = 1 << 18;  // floats: tiles for more than a hundred blocks
  const int devices = GENERATE(1, 2);
  FakeMachine machine({.devices = devices});
  std::mutex mutex;
  std::set<unsigned> reducing, copying;
  machine.cuda.add_kernel("ronde_reduce_f32", [&](const FakeCuda::Launch& launch) {
    const std::lock_guard lock(mutex);
    reducing.insert(launch.blocks);
    return [] {};
  });
  machine.cuda.add_kernel("ronde_move_4", [&](const FakeCuda::Launch& launch) {
    const std::lock_guard lock(mutex);
    copying.insert(launch.blocks);
    return [] {};
  });
  CudaOptions options = cuda_options_of(machine);
  options.fusion_bytes = kCount * sizeof(float);
  run_gpu_ranks(machine, 2, devices, options, [&](Runtime& runtime, ProgramGpu& gpu) {
    GpuSum sum(runtime, gpu, kCount);
    sum.start().wait();
  });
  REQUIRE_FALSE(reducing.empty());
  REQUIRE_FALSE(copying.empty());
  const bool has_links = devices == 2;
  CHECK((*reducing.rbegin() <= 32) == has_links);
  // A rank packs within its GPU, and reads the other's share over the link.
  CHECK(*copying.rbegin() > 32);
  CHECK((*copying.begin() <= 32) == has_links);
}
