// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "backends/hierarchical/hierarchical.h"
#include "backends/hierarchical/hierarchical_allreduce.h"
#include "backends/shm/slots/slot_buffer.h"
#include "ronde/plugin/backend.h"

namespace ronde::hierarchical {

/// The slot buffer of this rank's host; its slots are as large on all hosts.
shm::SlotBufferShape slot_buffer_shape(const HierarchicalOptions& options,
                                       const Topology& topology);

/// Allreduces through the shared memory of each host and one shard a rank between hosts, straight
/// from and to the segments. The fabric's packed backend does all other operations.
///
/// Thread-safety: as Backend. All operations that have begun are to be polled.
class HierarchicalBackend final : public Backend {
 public:
  /// `others` takes segments, does all other operations, and owns the fabric.
  HierarchicalBackend(std::shared_ptr<Hierarchy> hierarchy, std::unique_ptr<Backend> others)
      : hierarchy_(std::move(hierarchy)), others_(std::move(others)) {}

  std::string_view name() const noexcept override { return "hierarchical"; }
  Capabilities capabilities() const override;
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override;
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override;
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override;
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override;
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override;
  std::unique_ptr<Operation> send(const SendCall& call) override;
  std::unique_ptr<Operation> recv(const RecvCall& call) override;
  std::optional<std::chrono::nanoseconds> tend() override { return others_->tend(); }
  int prepare_sleep() override { return others_->prepare_sleep(); }
  void abort() noexcept override { others_->abort(); }
  void close() override { others_->close(); }
  StatsGroup stats() const override;

 private:
  const std::shared_ptr<Hierarchy> hierarchy_;
  const std::unique_ptr<Backend> others_;
};

}  // namespace ronde::hierarchical
