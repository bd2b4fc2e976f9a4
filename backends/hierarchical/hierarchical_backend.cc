// SPDX-License-Identifier: Apache-2.0
#include "backends/hierarchical/hierarchical_backend.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "backends/shm/memory/in_step.h"
#include "backends/shm/memory/shared_memory.h"

namespace ronde::hierarchical {
namespace {

/// Above that of a flat backend, which sends every rank's bytes between hosts.
constexpr int kPriority = 15;
/// With one more, rounds of the next operation fill the slots that the last rounds of one leave.
constexpr std::size_t kInFlight = 2;

std::shared_ptr<shm::SlotBufferContext> make_slot_buffer(const HierarchicalOptions& options,
                                                         const BackendContext& context) {
  const Topology& topology = *context.topology;
  const shm::Meeting meeting = {topology, context.exchange};
  const shm::SlotBufferShape shape = slot_buffer_shape(options, topology);
  const auto memory =
      std::make_shared<shm::SharedMemory>(shm::share_memory(meeting, shape.bytes()));
  std::shared_ptr<shm::SlotBufferContext> buffer;
  // No rank may use the slot buffer before all have made theirs.
  shm::in_step(meeting, "cannot start the hierarchical backend", [&] {
    buffer = std::make_shared<shm::SlotBufferContext>(
        memory->bytes(), memory, shape, static_cast<std::size_t>(topology.local_rank),
        context.notify_peers, ShmOptions::Stores::Regular);
    return std::string();
  });
  return buffer;
}

std::unique_ptr<Backend> create_backend(SharedFabric& shared, const HierarchicalOptions& options,
                                        BackendContext& context) {
  const Topology& topology = *context.topology;
  std::shared_ptr<shm::SlotBufferContext> buffer = make_slot_buffer(options, context);
  std::shared_ptr<Fabric> fabric = shared.get(context);
  Shards shards = shards_of(topology, options.least_message);
  std::shared_ptr<const FabricChannel> owners;
  if (shards.own) {
    owners = std::make_shared<const FabricChannel>(
        FabricChannel{fabric, shards.owners, shards.own_host, fabric->channels() - 1});
  }
  auto hierarchy = std::make_shared<Hierarchy>(
      std::move(buffer), std::move(shards), std::move(owners), options.algorithms, options.exact);
  std::unique_ptr<Backend> others = context.pack(make_fabric_backend(
      fabric, context, {.algorithms = options.algorithms, .exact = options.exact}, true));
  return std::make_unique<HierarchicalBackend>(std::move(hierarchy), std::move(others));
}

}  // namespace

shm::SlotBufferShape slot_buffer_shape(const HierarchicalOptions& options,
                                       const Topology& topology) {
  constexpr std::size_t kKiB = std::size_t{1} << 10;
  constexpr std::size_t kLeast = 64 * kKiB;
  constexpr std::size_t kMost = 2048 * kKiB;
  constexpr std::size_t kMostOfHost = 256 * kKiB * kKiB;
  constexpr std::size_t kUnit = 4 * kKiB;
  const auto ranks = static_cast<std::size_t>(topology.local_size);
  std::size_t slot_bytes = options.slot_bytes;
  if (slot_bytes == 0) {
    const Shards shards = shards_of(topology);
    const std::size_t wanted =
        std::clamp(options.least_message * shards.count * shards.hosts, kLeast, kMost);
    const std::size_t share =
        kMostOfHost / (shards.largest_host * std::max<std::size_t>(options.slots, 1));
    slot_bytes = std::max(std::min(wanted, share) / kUnit * kUnit, kUnit);
  }
  return {.ranks = ranks, .slots = options.slots, .slot_bytes = slot_bytes};
}

Capabilities HierarchicalBackend::capabilities() const {
  Capabilities capabilities;
  capabilities.dtypes.set();
  capabilities.set_wire_dtypes();
  capabilities.device = DeviceKind::Cpu;
  capabilities.wants_packed = false;
  capabilities.widen_halves = false;
  // In a job on several hosts nobody rings where bytes have come into the memory of a host.
  capabilities.waiting = Waiting::Pause;
  capabilities.operations_in_flight = kInFlight;
  return capabilities;
}

std::unique_ptr<Operation> HierarchicalBackend::allreduce(const AllreduceCall& call) {
  return std::make_unique<HierarchicalAllreduce>(hierarchy_, call);
}

std::unique_ptr<Operation> HierarchicalBackend::broadcast(const BroadcastCall& call) {
  return others_->broadcast(call);
}

std::unique_ptr<Operation> HierarchicalBackend::allgather(const AllgatherCall& call) {
  return others_->allgather(call);
}

std::unique_ptr<Operation> HierarchicalBackend::alltoall(const AlltoallCall& call) {
  return others_->alltoall(call);
}

std::unique_ptr<Operation> HierarchicalBackend::reducescatter(const ReducescatterCall& call) {
  return others_->reducescatter(call);
}

std::unique_ptr<Operation> HierarchicalBackend::send(const SendCall& call) {
  return others_->send(call);
}

std::unique_ptr<Operation> HierarchicalBackend::recv(const RecvCall& call) {
  return others_->recv(call);
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

}  // namespace ronde::hierarchical

namespace ronde {

BackendFactory hierarchical_backend_factory(std::shared_ptr<SharedFabric> fabric,
                                            const HierarchicalOptions& options) {
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
