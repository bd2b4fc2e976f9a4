// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "core/src/sim/event_queue.h"
#include "core/src/sim/network.h"
#include "core/src/sim/rank_fibers.h"
#include "ronde/plugin/board.h"
#include "ronde/plugin/transport.h"
#include "ronde/simulation.h"

namespace ronde {

/// The control plane of all ranks of a simulation, over its network, and the memory that the ranks
/// share where they are on one host.
///
/// Thread-safety: none.
class SimulatedControl {
 public:
  /// The references outlive it, and it outlives what it makes.
  SimulatedControl(const SimulationOptions& options, SimulatedNetwork& network, RankFibers& fibers);

  std::unique_ptr<Transport> transport(int rank);
  std::unique_ptr<Board> board(int rank);

  /// The process of a rank has ended: its neighbours see that, and it sends and receives nothing
  /// more.
  void kill(int rank);

 private:
  class RankTransport;
  class RankBoard;

  /// What one rank sends to another arrives in order, the loss of the sender last.
  struct Way {
    struct Item {
      Incoming incoming;
      bool has_arrived = false;
    };
    std::uint64_t taken = 0;  ///< items that are not here any more
    std::deque<Item> items;
  };
  struct Mailbox {
    std::deque<Incoming> incoming;
    std::map<int, Way> ways;  ///< by sender
    bool is_open = true;
  };

  Mailbox& mailbox(int rank) { return mailboxes_[static_cast<std::size_t>(rank)]; }
  bool share_host(int a, int b) const;
  std::vector<int> neighbours_of(int rank) const;
  Duration cost_of(int rank, int peer) const;
  Duration latency_of(int from, int to) const;
  void send(int from, int to, std::string_view message);
  void arrive(int from, int to, std::uint64_t number);
  static void deliver(Mailbox& receiver, Way& way);
  void close(int rank);

  const SimulationOptions& options_;
  SimulatedNetwork& network_;
  RankFibers& fibers_;
  const Topology tree_;  ///< of rank 0
  const Duration round_, message_, overhead_;
  std::vector<Mailbox> mailboxes_;
  std::vector<Board::Word> words_;    ///< of the board, once there is one
  std::vector<Board::Sleep> asleep_;  ///< by rank
};

}  // namespace ronde
