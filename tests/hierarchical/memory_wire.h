// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "backends/hierarchical/wire.h"

namespace ronde::test {

/// Where the wires of threads that stand for ranks meet. A message is copied straight out of the
/// sender's memory, late: ThreadSanitizer sees memory that is used again too early. Thread-safe.
class Exchange {
 public:
  struct Message {
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
    bool is_taken = false;
  };

  void post(int from, int to, hierarchical::Wire::Kind kind, std::shared_ptr<Message> message);
  /// Copies the next message to `memory`; false if there is none yet.
  bool take(int from, int to, hierarchical::Wire::Kind kind, std::byte* memory, std::size_t bytes);
  bool is_taken(const Message& message);

 private:
  using Way = std::tuple<int, int, hierarchical::Wire::Kind>;

  std::mutex mutex_;
  std::map<Way, std::deque<std::shared_ptr<Message>>> messages_;  ///< guarded by mutex_
};

class MemoryWire final : public hierarchical::Wire {
 public:
  /// `peers`: ranks by host.
  MemoryWire(Exchange& exchange, int rank, std::vector<int> peers)
      : exchange_(exchange), rank_(rank), peers_(std::move(peers)) {}

  void send(std::size_t batch, std::size_t host, Kind kind, const std::byte* from,
            std::size_t bytes) override;
  void receive(std::size_t batch, std::size_t host, Kind kind, std::byte* to,
               std::size_t bytes) override;
  bool done(std::size_t batch) override;
  void keep_for_ever(std::shared_ptr<void> memory) override { kept.push_back(std::move(memory)); }

  /// What an operation gave up. Refers to the wire itself: to be cleared.
  std::vector<std::shared_ptr<void>> kept;

 private:
  struct Receive {
    std::size_t batch;
    std::byte* to;
    std::size_t bytes;
  };

  bool received_all(std::size_t batch);

  Exchange& exchange_;
  const int rank_;
  const std::vector<int> peers_;
  std::map<std::size_t, std::vector<std::shared_ptr<Exchange::Message>>> sends_;  ///< by batch
  std::map<std::pair<int, Kind>, std::deque<Receive>> receives_;  ///< in the order of posting
};

}  // namespace ronde::test
