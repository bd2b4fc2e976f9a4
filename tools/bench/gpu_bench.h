// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/ipc_peers.h"
#include "backends/cuda/workbench.h"
#include "tools/bench/session.h"
#include "tools/bench/setups.h"

namespace ronde::tool {

/// How a bare hand-over can be made: IpcHandover, and what it is called.
constexpr std::array kHandOvers = {IpcHandover::Flags, IpcHandover::Kernels};
inline const std::array<std::string, kHandOvers.size()> kHandOverNames = {"hand-over-flags",
                                                                          "hand-over-kernels"};

/// The GPU of this rank, with memory to reduce, and what there is to measure on it.
class GpuBench {
 public:
  /// Rank r of a host takes GPU r, counted around. `bytes`: of the buffer. Throws UsageError if
  /// there is none.
  GpuBench(Session& session, const GpuAccess& access, std::size_t bytes);
  ~GpuBench();
  GpuBench(const GpuBench&) = delete;
  GpuBench& operator=(const GpuBench&) = delete;

  const std::string& gpu_name() const { return streams_->context(device_)->gpu().name; }
  /// Whether ranks of this host share GPUs.
  bool is_shared() const;

  /// Sums the first `bytes` of the buffer, of f32, as segments of these elements, and waits until
  /// the sum is there.
  /// `set_up`: its name, for errors.
  void reduce(Backend& backend, std::span<const std::size_t> counts, const std::string& set_up);
  /// Copies as much within the GPU; rank 0 alone does.
  void copy(std::size_t bytes);
  /// Which of kHandOvers work; the same on all ranks. Collective.
  std::vector<std::size_t> connect();
  /// A bare hand-over: once all ranks' threads have come, this rank's stream waits for those of all
  /// others.
  void hand_over(std::size_t which);
  /// Lets go of what belongs to other ranks, and waits until they have, so that this can be
  /// destroyed. Nothing is measured afterwards. Collective.
  void end();

  /// What the buffer holds is written before and compared after `reduce`. Collective; throws
  /// CommonError if a rank's sum is wrong.
  void check(Backend& backend, std::span<const std::size_t> counts, const std::string& what);

 private:
  void write(const std::vector<float>& values);
  std::vector<float> read(std::size_t count);
  void wait(const DeviceEvent& event, std::string_view what);

  Session& session_;
  const std::shared_ptr<const cuda::DriverApi> api_;
  const int device_;
  const std::shared_ptr<cuda::CudaStreams> streams_;
  const std::shared_ptr<cuda::Stream> stream_;  ///< the program's
  cuda::DeviceMemory buffer_;
  cuda::DeviceMemory other_;
  /// What hands over in one way: memory and flags of its own.
  struct Pair {
    Pair(GpuBench& owner, const void* image, IpcHandover handover);
    cuda::Workbench bench;
    cuda::IpcPeers peers;
  };
  std::vector<std::unique_ptr<Pair>> pairs_;  ///< as kHandOvers
  gpu::HostExchange exchange_;
  std::vector<Segment> segments_;
};

}  // namespace ronde::tool
