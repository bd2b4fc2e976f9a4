// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "backends/hierarchical/hierarchical_allreduce.h"
#include "backends/shm/slots/slot_operation.h"
#include "ronde/topology.h"
#include "tests/support/inproc/memory_network.h"

namespace ronde::test {

/// Hosts whose ranks are threads: memory of this process for the slot buffer of each, and a
/// network.
class MemoryHosts {
 public:
  /// `host_of`: that of each rank. `link`, `clock`: of the network.
  MemoryHosts(const std::vector<int>& host_of, std::size_t slots, std::size_t slot_bytes,
              inproc::MemoryLink link = {},
              std::function<inproc::MemoryNetwork::Time()> clock = std::chrono::steady_clock::now)
      : network(std::make_shared<inproc::MemoryNetwork>(static_cast<int>(host_of.size()), link,
                                                        std::move(clock))) {
    std::map<int, std::size_t> ranks;
    for (const int host : host_of) ++ranks[host];
    for (const auto& [host, count] : ranks) {
      const shm::SlotBufferShape shape = {count, slots, slot_bytes};
      auto* const memory =
          static_cast<std::byte*>(std::aligned_alloc(shm::kSlotBufferAlignment, shape.bytes()));
      if (memory == nullptr) throw std::bad_alloc();
      buffers_.emplace(host, Buffer{shape, {memory, &std::free}});
    }
  }

  /// What the rank of this topology has of its host's. The hosts are numbered from 0.
  std::shared_ptr<shm::SlotBufferContext> buffer(const Topology& topology) const {
    const Buffer& buffer = buffers_.at(topology.host_of[static_cast<std::size_t>(topology.rank)]);
    const std::span bytes(static_cast<std::byte*>(buffer.memory.get()), buffer.shape.bytes());
    return std::make_shared<shm::SlotBufferContext>(
        bytes, buffer.memory, buffer.shape, static_cast<std::size_t>(topology.local_rank), [] {},
        ShmOptions::Stores::Regular);
  }

  std::shared_ptr<hierarchical::Hierarchy> hierarchy(const Topology& topology,
                                                     std::shared_ptr<Fabric> fabric = nullptr) {
    const Shards shards = shards_of(topology);
    std::shared_ptr<const FabricChannel> owners;
    if (shards.own) {
      if (!fabric) fabric = network->fabric(topology.rank);
      owners = std::make_shared<const FabricChannel>(
          FabricChannel{std::move(fabric), shards.owners, shards.own_host, 1});
    }
    return std::make_shared<hierarchical::Hierarchy>(buffer(topology), shards, std::move(owners),
                                                     algorithms, exact);
  }

  const std::shared_ptr<inproc::MemoryNetwork> network;
  AlgorithmTable algorithms;
  bool exact = false;

 private:
  struct Buffer {
    shm::SlotBufferShape shape;
    std::shared_ptr<void> memory;
  };
  std::map<int, Buffer> buffers_;
};

}  // namespace ronde::test
