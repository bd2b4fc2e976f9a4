// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <vector>

#include "backends/shm/ring_operation.h"
#include "ronde/topology.h"

namespace ronde::test {

/// Memory of this process for the ring of each host, of ranks that are threads.
class MemoryRings {
 public:
  /// `hosts`: that of each rank.
  MemoryRings(const std::vector<int>& hosts, std::size_t slots, std::size_t slot_bytes) {
    std::map<int, std::size_t> ranks;
    for (const int host : hosts) ++ranks[host];
    for (const auto& [host, count] : ranks) {
      const shm::RingShape shape = {count, slots, slot_bytes};
      auto* const memory =
          static_cast<std::byte*>(std::aligned_alloc(shm::kRingAlignment, shape.bytes()));
      if (memory == nullptr) throw std::bad_alloc();
      rings_.emplace(host, Ring{shape, {memory, &std::free}});
    }
  }

  /// What the rank of this topology has of it. The hosts are numbered from 0.
  std::shared_ptr<shm::RingContext> context(const Topology& topology) const {
    const Ring& ring = rings_.at(topology.host_of[static_cast<std::size_t>(topology.rank)]);
    const std::span bytes(static_cast<std::byte*>(ring.memory.get()), ring.shape.bytes());
    return std::make_shared<shm::RingContext>(
        bytes, ring.memory, ring.shape, static_cast<std::size_t>(topology.local_rank), [] {},
        ShmOptions::Stores::Regular);
  }

 private:
  struct Ring {
    shm::RingShape shape;
    std::shared_ptr<void> memory;
  };
  std::map<int, Ring> rings_;
};

}  // namespace ronde::test
