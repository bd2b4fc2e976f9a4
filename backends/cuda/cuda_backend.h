// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/cuda/base/visible_devices.h"
#include "backends/cuda/cuda.h"
#include "backends/cuda/ipc/ipc_operations.h"
#include "backends/cuda/ipc/ipc_peers.h"
#include "backends/cuda/ipc/registration_cache.h"
#include "backends/cuda/ipc/registrations.h"
#include "backends/cuda/mpi/gpu_aware_link.h"
#include "backends/cuda/mpi/gpu_aware_operations.h"
#include "backends/cuda/staging/between_hosts.h"
#include "backends/cuda/staging/host_pipe.h"
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
  /// `context` outlives the backend. `gpu_aware_messages`: make_direct_messages().
  CudaBackend(std::shared_ptr<const DriverApi> api, const void* image, CudaOptions options,
              const BackendContext& context, std::unique_ptr<Backend> gpu_aware_messages);
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
    HostPipe pipe;
    std::optional<BetweenHosts> between;
    IpcPeers peers;
    IpcOperations ipc;
    StagedOperations staged;
  };
  class Run;

  /// What may serve an operation; the host serves all. Messages are always staged, as the trials
  /// are collectives of all ranks. Broadcasts across hosts are staged: they happen once, before
  /// training.
  struct Ways {
    bool ipc = false;
    bool mpi = false;
  };

  /// `device`: an ordinal; negative: any that this rank may use.
  Gpu& gpu(int device);
  Steps find_ways(int device);
  void tell(const std::string& of_ipc, const std::string& of_mpi) const;
  bool may_use_ipc() const;
  Collectives* choose(Ways ways) noexcept;
  bool is_on_one_host() const { return topology_.hosts() == 1; }
  Ways ways() const { return {.ipc = is_on_one_host(), .mpi = true}; }
  Ways ways_of_sum(const AllreduceCall& call) const;

  const CudaOptions options_;
  const void* const image_;
  const Topology topology_;
  const std::vector<int> ranks_;
  const bool is_of_all_;  ///< and not of a process set
  const std::function<void(const std::string&)> warn_;
  Backend& host_;
  const VisibleDevices visible_;
  const std::shared_ptr<CudaStreams> streams_;
  std::unique_ptr<RegistrationCache> cache_;
  CudaCounters counters_;
  gpu::HostExchange exchange_;
  std::unique_ptr<GpuAwareLink> gpu_aware_link_;  ///< null: MPI does not take addresses of GPUs
  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<GpuAwareOperations> direct_;  ///< once the trial has succeeded
  bool is_dead_ = false;                        ///< the group has failed
  bool has_ways_ = false;                       ///< the trials have ended
  bool has_ipc_ = false;
};

}  // namespace ronde::cuda
