// SPDX-License-Identifier: Apache-2.0
#include "backends/hierarchical/hierarchical.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "backends/hierarchical/hierarchical_allreduce.h"
#include "backends/shm/memory/shared_memory.h"
#include "ronde/plugin/backend.h"

namespace ronde::hierarchical {
namespace {

/// Higher than that of a flat backend, which sends every rank's bytes between hosts.
constexpr int kPriority = 15;
/// Two operations: rounds of the second fill the slots that the last rounds of the first leave
/// free.
constexpr std::size_t kInFlight = 2;

std::shared_ptr<shm::SlotBufferContext> make_slot_buffer(const BackendContext& context) {
  const Topology& topology = *context.topology;
  const shm::Meeting meeting = {topology, context.exchange};
  const shm::SlotBufferShape shape = slot_buffer_shape(topology);
  const auto memory =
      std::make_shared<shm::SharedMemory>(shm::share_memory(meeting, shape.bytes()));
  std::shared_ptr<shm::SlotBufferContext> buffer;
  // No rank may use the slot buffer before all have constructed theirs.
  shm::in_step(meeting, "cannot start the hierarchical backend", [&] {
    buffer = std::make_shared<shm::SlotBufferContext>(
        memory->bytes(), memory, shape, static_cast<std::size_t>(topology.local_rank),
        context.notify_peers, ShmOptions::Stores::Regular);
    return std::string();
  });
  return buffer;
}

/// Runs allreduces through the shared memory of each host, and between hosts one shard a rank,
/// straight from and to the segments. The fabric's packed backend runs all other operations.
///
/// Thread-safety: as Backend. All operations that have begun must be polled.
class HierarchicalBackend final : public Backend {
 public:
  /// `others` accepts segments, runs all other operations, and owns the fabric.
  HierarchicalBackend(std::shared_ptr<Hierarchy> hierarchy, std::unique_ptr<Backend> others)
      : hierarchy_(std::move(hierarchy)), others_(std::move(others)) {}

  std::string_view name() const noexcept override { return "hierarchical"; }
  Capabilities capabilities() const override;
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override;
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override {
    return others_->broadcast(call);
  }
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override {
    return others_->allgather(call);
  }
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override {
    return others_->alltoall(call);
  }
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override {
    return others_->reducescatter(call);
  }
  std::unique_ptr<Operation> send(const SendCall& call) override { return others_->send(call); }
  std::unique_ptr<Operation> recv(const RecvCall& call) override { return others_->recv(call); }
  std::optional<std::chrono::nanoseconds> tend() override { return others_->tend(); }
  int prepare_sleep() override { return others_->prepare_sleep(); }
  void abort() noexcept override { others_->abort(); }
  void close() override { others_->close(); }
  StatsGroup stats() const override;

 private:
  const std::shared_ptr<Hierarchy> hierarchy_;
  const std::unique_ptr<Backend> others_;
};

Capabilities HierarchicalBackend::capabilities() const {
  Capabilities capabilities;
  capabilities.dtypes.set();
  capabilities.ops.set();
  capabilities.set_wire_dtypes();
  capabilities.device = DeviceKind::Cpu;
  capabilities.wants_packed = false;
  capabilities.widen_halves = false;
  // No rank rings a bell when bytes arrive from another host.
  capabilities.waiting = Waiting::Pause;
  capabilities.operations_in_flight = kInFlight;
  return capabilities;
}

std::unique_ptr<Operation> HierarchicalBackend::allreduce(const AllreduceCall& call) {
  return std::make_unique<HierarchicalAllreduce>(hierarchy_, call);
}

StatsGroup HierarchicalBackend::stats() const {
  const shm::SlotCounters& counters = hierarchy_->buffer->counters;
  StatsGroup group = {"hierarchical",
                      {{"operations", counters.operations},
                       {"rounds", counters.rounds},
                       {"staged_bytes", counters.staged_bytes},
                       {"shards", hierarchy_->shards.count},
                       {"slot_buffer_bytes", hierarchy_->buffer->buffer.shape().bytes()}}};
  hierarchy_->add_counters(group);
  for (const auto& [name, value] : others_->stats().counters) {
    group.counters.emplace_back(name.starts_with("fabric_") ? name : "flat_" + name, value);
  }
  return group;
}

std::unique_ptr<Backend> create_backend(SharedFabric& shared, const FabricBackendOptions& options,
                                        BackendContext& context) {
  const Topology& topology = *context.topology;
  std::shared_ptr<shm::SlotBufferContext> buffer = make_slot_buffer(context);
  std::shared_ptr<Fabric> fabric = shared.get(context);
  Shards shards = shards_of(topology, kLeastMessage);
  std::shared_ptr<const FabricChannel> owners;
  if (shards.own) {
    owners = std::make_shared<const FabricChannel>(
        FabricChannel{fabric, shards.owners, shards.own_host, fabric->channels() - 1});
  }
  auto hierarchy = std::make_shared<Hierarchy>(
      std::move(buffer), std::move(shards), std::move(owners), options.algorithms, options.exact);
  std::unique_ptr<Backend> others =
      context.pack(make_fabric_backend(fabric, context, options, true));
  return std::make_unique<HierarchicalBackend>(std::move(hierarchy), std::move(others));
}

}  // namespace
}  // namespace ronde::hierarchical

namespace ronde {

BackendFactory hierarchical_backend_factory(std::shared_ptr<SharedFabric> fabric,
                                            const FabricBackendOptions& options) {
  BackendFactory factory;
  factory.device = DeviceKind::Cpu;
  factory.priority = hierarchical::kPriority;
  factory.suits = [](const Topology& topology) {
    return topology.hosts() > 1 && topology.size > topology.hosts();
  };
  factory.create = [fabric = std::move(fabric), options](BackendContext& context) {
    return hierarchical::create_backend(*fabric, options, context);
  };
  return factory;
}

}  // namespace ronde
