// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/cuda/cuda.h"
#include "backends/cuda/ipc/ipc_operations.h"
#include "backends/cuda/ipc/ipc_peers.h"
#include "backends/cuda/ipc/registrations.h"
#include "backends/cuda/mpi/gpu_aware_operations.h"
#include "backends/cuda/staging/staged_operations.h"
#include "backends/gpu/base/host_exchange.h"
#include "backends/gpu/driver/cuda_streams.h"
#include "backends/gpu/gpu_backends.h"
#include "core/src/base/steps.h"
#include "ronde/backend.h"
#include "ronde/topology.h"

namespace ronde::cuda {

/// Buffers on GPUs, without NCCL. The first operation determines the rank's GPU; resources are made
/// and CUDA IPC is tried only then.
///
/// Thread-safety: as Backend. One operation at a time.
class CudaBackend final : public Backend {
 public:
  /// `context` outlives the backend. `messages`: sends and receives memory of GPUs, or null.
  CudaBackend(std::shared_ptr<const DriverApi> api, const void* image, CudaOptions options,
              const BackendContext& context, std::unique_ptr<Backend> messages);
  ~CudaBackend() override;

  std::string_view name() const noexcept override { return "cuda"; }
  Capabilities capabilities() const override { return gpu_capabilities(); }
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override;
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override;
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override;
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override;
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override;
  std::unique_ptr<Operation> send(const SendCall& call) override;
  std::unique_ptr<Operation> recv(const RecvCall& call) override;
  std::shared_ptr<DeviceStreams> device_streams() const override { return streams_; }
  void abort() noexcept override;
  void release_peer_memory() override;
  void close() override;
  StatsGroup stats() const override;

 private:
  /// The resources on the rank's GPU.
  struct Gpu {
    Gpu(CudaBackend& owner, int device);

    GpuResources resources;
    IpcPeers peers;
    IpcOperations ipc;
    std::optional<GpuAwareOperations> direct;
    StagedOperations staged;
  };
  class Run;

  /// What may serve an operation; the host serves all. Messages are always staged, as the trial is
  /// a collective of all ranks. Broadcasts, which happen once, before training, are not left to
  /// MPI.
  struct Ways {
    bool ipc = true;
    bool mpi = true;
  };

  /// `device`: an ordinal; negative: any that this rank may use.
  Gpu& gpu(int device);
  Steps try_ipc(Gpu& gpu);
  Collectives* choose(Ways ways) noexcept;

  const CudaOptions options_;
  const void* const image_;
  const Topology topology_;
  const std::vector<int> ranks_;
  const std::function<void(const std::string&)> warn_;
  Backend& host_;
  const std::shared_ptr<CudaStreams> streams_;
  std::unique_ptr<RegistrationCache> cache_;
  CudaCounters counters_;
  gpu::HostExchange exchange_;
  const std::unique_ptr<Backend> messages_;  ///< null without GPU-aware MPI
  std::unique_ptr<Gpu> gpu_;
  bool is_dead_ = false;         ///< the group has failed
  std::optional<bool> has_ipc_;  ///< once it was tried
};

}  // namespace ronde::cuda
