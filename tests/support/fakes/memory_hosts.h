// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "backends/hierarchical/hierarchical_allreduce.h"
#include "backends/hierarchical/wire.h"
#include "backends/shm/slots/slot_operation.h"
#include "ronde/error.h"
#include "ronde/topology.h"

namespace ronde::test {

/// Where the wires of threads that stand for ranks meet. A message is copied straight out of the
/// sender's memory, late: ThreadSanitizer sees memory that is used again too early. Thread-safe.
class Exchange {
 public:
  using Kind = hierarchical::Wire::Kind;
  struct Message {
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
    bool is_taken = false;
  };

  void post(int from, int to, Kind kind, std::shared_ptr<Message> message) {
    const std::lock_guard lock(mutex_);
    messages_[{from, to, kind}].push_back(std::move(message));
  }
  /// Copies the next message to `memory`; false if there is none yet.
  bool take(int from, int to, Kind kind, std::byte* memory, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto& waiting = messages_[{from, to, kind}];
    if (waiting.empty()) return false;
    Message& message = *waiting.front();
    if (message.bytes != bytes) throw Error("a message is not as large as expected");
    std::memcpy(memory, message.from, bytes);
    message.is_taken = true;
    waiting.pop_front();
    return true;
  }
  bool is_taken(const Message& message) {
    const std::lock_guard lock(mutex_);
    return message.is_taken;
  }

 private:
  std::mutex mutex_;
  /// Guarded by mutex_.
  std::map<std::tuple<int, int, Kind>, std::deque<std::shared_ptr<Message>>> messages_;
};

class MemoryWire final : public hierarchical::Wire {
 public:
  /// `peers`: ranks by host.
  MemoryWire(Exchange& exchange, int rank, std::vector<int> peers)
      : exchange_(exchange), rank_(rank), peers_(std::move(peers)) {}

  void send(std::size_t batch, std::size_t host, Kind kind, const std::byte* from,
            std::size_t bytes) override {
    const auto message = std::make_shared<Exchange::Message>(Exchange::Message{from, bytes});
    sends_[batch].push_back(message);
    exchange_.post(rank_, peers_.at(host), kind, message);
  }
  void receive(std::size_t batch, std::size_t host, Kind kind, std::byte* to,
               std::size_t bytes) override {
    receives_[{peers_.at(host), kind}].push_back({batch, to, bytes});
  }
  bool done(std::size_t batch) override {
    auto& sends = sends_[batch];
    std::erase_if(sends, [&](const auto& message) { return exchange_.is_taken(*message); });
    return received_all(batch) && sends.empty();
  }
  void keep_for_ever(std::shared_ptr<void> memory) override { kept.push_back(std::move(memory)); }

  /// What an operation gave up. Refers to the wire itself: to be cleared.
  std::vector<std::shared_ptr<void>> kept;

 private:
  struct Receive {
    std::size_t batch;
    std::byte* to;
    std::size_t bytes;
  };

  bool received_all(std::size_t batch) {
    bool all = true;
    for (auto& [way, waiting] : receives_) {
      const auto [peer, kind] = way;
      while (!waiting.empty() &&
             exchange_.take(peer, rank_, kind, waiting.front().to, waiting.front().bytes)) {
        waiting.pop_front();
      }
      all = all && std::ranges::find(waiting, batch, &Receive::batch) == waiting.end();
    }
    return all;
  }

  Exchange& exchange_;
  const int rank_;
  const std::vector<int> peers_;
  std::map<std::size_t, std::vector<std::shared_ptr<Exchange::Message>>> sends_;  ///< by batch
  std::map<std::pair<int, Kind>, std::deque<Receive>> receives_;  ///< in the order of posting
};

/// Hosts whose ranks are threads: memory of this process for the slot buffer of each, and wires.
class MemoryHosts {
 public:
  /// `host_of`: that of each rank.
  MemoryHosts(const std::vector<int>& host_of, std::size_t slots, std::size_t slot_bytes) {
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

  std::shared_ptr<hierarchical::Hierarchy> hierarchy(const Topology& topology) {
    const hierarchical::Shards shards = hierarchical::shards_of(topology);
    std::unique_ptr<MemoryWire> wire;
    if (shards.own) wire = std::make_unique<MemoryWire>(exchange, topology.rank, shards.owners);
    return std::make_shared<hierarchical::Hierarchy>(buffer(topology), shards, std::move(wire));
  }

  Exchange exchange;

 private:
  struct Buffer {
    shm::SlotBufferShape shape;
    std::shared_ptr<void> memory;
  };
  std::map<int, Buffer> buffers_;
};

}  // namespace ronde::test
