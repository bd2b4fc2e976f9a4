// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "ronde/plugin/fabric_backend.h"
#include "tests/support/inproc/memory_network.h"

namespace ronde::test {

using Operations = std::vector<std::unique_ptr<Operation>>;

/// Backends over a network in memory, all driven by one thread, in virtual time and in a random
/// order of ranks.
class FabricRanks {
 public:
  explicit FabricRanks(int ranks, const FabricBackendOptions& options = {},
                       inproc::MemoryNetwork::Link link = {})
      : network_(std::make_shared<inproc::MemoryNetwork>(ranks, link, [this] { return now_; })),
        topologies_(static_cast<std::size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<int> hosts(static_cast<std::size_t>(ranks));
      for (std::size_t i = 0; i < hosts.size(); ++i) hosts[i] = static_cast<int>(i);
      topologies_[static_cast<std::size_t>(rank)] = make_topology(rank, hosts);
      BackendContext context;
      context.topology = &topologies_[static_cast<std::size_t>(rank)];
      context.ranks = hosts;
      backends_.push_back(make_fabric_backend(network_->fabric(rank), context, options, true));
    }
  }

  int size() const noexcept { return static_cast<int>(backends_.size()); }
  Backend& backend(int rank) { return *backends_[static_cast<std::size_t>(rank)]; }
  inproc::MemoryNetwork& network() noexcept { return *network_; }

  /// Starts an operation on every rank, and polls all until they have ended. Returns the virtual
  /// time that it took, in seconds.
  double run(const std::function<std::unique_ptr<Operation>(int rank, Backend& backend)>& start) {
    Operations operations;
    for (int rank = 0; rank < size(); ++rank) operations.push_back(start(rank, backend(rank)));
    return finish(operations);
  }

  /// `others` are polled as well, as long as `operations` take.
  double finish(Operations& operations, Operations* others = nullptr) {
    const auto begin = now_;
    const auto progress_of_all = [&] {
      return progress(operations) + (others != nullptr ? progress(*others) : 0);
    };
    const auto poll_some = [this](Operations& some) {
      std::shuffle(some.begin(), some.end(), dice_);
      return std::erase_if(some, [](auto& one) { return one->poll(); });
    };
    while (!operations.empty()) {
      const std::uint64_t before = progress_of_all();
      std::size_t ended = poll_some(operations);
      if (others != nullptr) ended += poll_some(*others);
      if (ended > 0 || progress_of_all() != before) continue;
      const auto next = network_->next_end();
      if (!next) throw std::runtime_error("all ranks wait, and no message is on its way");
      now_ = *next;
    }
    return std::chrono::duration<double>(now_ - begin).count();
  }

  std::uint64_t counter(int rank, const std::string& name) {
    for (const auto& [key, value] : backend(rank).stats().counters) {
      if (key == name) return value;
    }
    return 0;
  }

 private:
  static std::uint64_t progress(const Operations& operations) {
    std::uint64_t all = 0;
    for (const auto& operation : operations) all += operation->progress();
    return all;
  }

  inproc::MemoryNetwork::Time now_{};
  std::mt19937 dice_{7};
  std::shared_ptr<inproc::MemoryNetwork> network_;
  std::vector<Topology> topologies_;
  std::vector<std::unique_ptr<Backend>> backends_;
};

}  // namespace ronde::test
