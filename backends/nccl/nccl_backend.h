// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "backends/cuda/gpu_backends.h"
#include "backends/nccl/links.h"
#include "ronde/backend.h"

namespace ronde::nccl {

/// Moves and reduces what is on GPUs by NCCL, or by the fallback where ranks share a GPU.
///
/// Thread-safety: as Backend.
class NcclBackend final : public Backend {
 public:
  NcclBackend(const Libraries& libraries, const NcclOptions& options, const BackendContext& context)
      : links_(libraries, options, context) {}

  std::string_view name() const noexcept override { return "nccl"; }
  Capabilities capabilities() const override { return cuda::gpu_capabilities(); }

  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override;
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override;
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override;
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override;
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override;
  std::unique_ptr<Operation> send(const SendCall& call) override;
  std::unique_ptr<Operation> recv(const RecvCall& call) override;

  std::shared_ptr<DeviceStreams> device_streams() const override { return links_.device_streams(); }
  void abort() noexcept override { links_.abort(); }
  void let_go() override { links_.let_go(); }
  void close() override { links_.close(); }
  StatsGroup stats() const override { return links_.stats(); }

 private:
  Links links_;
};

}  // namespace ronde::nccl
