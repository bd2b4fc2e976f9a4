// SPDX-License-Identifier: Apache-2.0
#include "backends/hierarchical/hierarchical_backend.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "backends/hierarchical/mpi_wire.h"
#include "backends/shm/memory/in_step.h"
#include "backends/shm/memory/shared_memory.h"

namespace ronde::hierarchical {
namespace {

/// Above MPI's priority: MPI would send every rank's bytes between hosts, or reduce on one of them.
constexpr int kPriority = 15;

std::unique_ptr<Wire> wire_of(const std::shared_ptr<mpi::MpiEnvironment>& environment,
                              MPI_Comm communicator, const Shards& shards, std::size_t slots) {
  if (!shards.own) return nullptr;
  return std::make_unique<MpiWire>(environment, communicator, shards.owners,
                                   Hierarchy::batches(slots));
}

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

std::unique_ptr<Backend> create_backend(const HierarchicalOptions& options,
                                        BackendContext& context) {
  std::shared_ptr<shm::SlotBufferContext> buffer = make_slot_buffer(options, context);
  std::unique_ptr<Backend> others = context.pack(mpi_backend_factory(options.mpi).create(context));
  const auto environment = mpi::MpiEnvironment::of_process();
  MPI_Comm communicator = environment->duplicate(context.deadline);
  return std::make_unique<HierarchicalBackend>(environment, communicator, std::move(buffer),
                                               *context.topology, std::move(others));
}

}  // namespace

shm::SlotBufferShape slot_buffer_shape(const HierarchicalOptions& options,
                                       const Topology& topology) {
  constexpr std::size_t kKiB = std::size_t{1} << 10;
  // Small enough that MPI sends it without asking the receiver first, which may look late.
  constexpr std::size_t kMessage = 32 * kKiB;
  constexpr std::size_t kLeast = 64 * kKiB;
  constexpr std::size_t kMost = 2048 * kKiB;
  constexpr std::size_t kMostOfHost = 48 * kKiB * kKiB;
  constexpr std::size_t kUnit = 4 * kKiB;
  const auto ranks = static_cast<std::size_t>(topology.local_size);
  std::size_t slot_bytes = options.slot_bytes;
  if (slot_bytes == 0) {
    const Shards shards = shards_of(topology);
    const std::size_t wanted = std::clamp(kMessage * shards.count * shards.hosts, kLeast, kMost);
    const std::size_t share =
        kMostOfHost / (shards.largest_host * std::max<std::size_t>(options.slots, 1));
    slot_bytes = std::max(std::min(wanted, share) / kUnit * kUnit, kUnit);
  }
  return {.ranks = ranks, .slots = options.slots, .slot_bytes = slot_bytes};
}

HierarchicalBackend::HierarchicalBackend(std::shared_ptr<mpi::MpiEnvironment> environment,
                                         MPI_Comm communicator,
                                         std::shared_ptr<shm::SlotBufferContext> buffer,
                                         const Topology& topology, std::unique_ptr<Backend> others)
    : mpi_(environment),
      communicator_(communicator),
      hierarchy_(std::make_shared<Hierarchy>(
          buffer, shards_of(topology),
          wire_of(environment, communicator, shards_of(topology), buffer->buffer.shape().slots))),
      others_(std::move(others)) {}

Capabilities HierarchicalBackend::capabilities() const {
  Capabilities capabilities;
  capabilities.dtypes.set();
  capabilities.set_wire_dtypes();
  capabilities.device = DeviceKind::Cpu;
  capabilities.wants_packed = false;
  capabilities.widen_halves = false;
  // Messages between hosts wake nobody.
  capabilities.notifies_peers = false;
  capabilities.tells_progress = true;
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

void HierarchicalBackend::abort() noexcept {
  // The communicator stays: freeing it would wait for the dead.
  others_->abort();
  mpi_->abandon();
}

void HierarchicalBackend::close() {
  others_->close();
  mpi_->free(communicator_);
  mpi_.leave(true);
}

StatsGroup HierarchicalBackend::stats() const {
  const shm::SlotCounters& counters = hierarchy_->buffer->counters;
  StatsGroup group = {"hierarchical",
                      {{"operations", counters.operations},
                       {"rounds", counters.rounds},
                       {"staged_bytes", counters.staged_bytes},
                       {"messages_between_hosts", hierarchy_->counters.messages},
                       {"sent_between_hosts_bytes", hierarchy_->counters.sent_bytes},
                       {"shards", hierarchy_->shards.count},
                       {"slot_buffer_bytes", hierarchy_->buffer->buffer.shape().bytes()}}};
  for (const auto& [name, value] : others_->stats().counters) {
    group.counters.emplace_back("mpi_" + name, value);
  }
  return group;
}

}  // namespace ronde::hierarchical

namespace ronde {

BackendFactory hierarchical_backend_factory(const HierarchicalOptions& options) {
  BackendFactory factory;
  factory.device = DeviceKind::Cpu;
  factory.priority = hierarchical::kPriority;
  factory.suits = [](const Topology& topology) {
    return topology.hosts() > 1 && topology.size > topology.hosts();
  };
  factory.create = [options](BackendContext& context) {
    return hierarchical::create_backend(options, context);
  };
  return factory;
}

}  // namespace ronde
