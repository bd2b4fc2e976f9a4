// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

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

  /// The connections of a rank end, and it sends and receives nothing more. `in_order`: after its
  /// messages; otherwise its process has ended, and what is slower than the news of that is lost.
  void end(int rank, bool in_order);

 private:
  class RankTransport;
  class RankBoard;

  /// A message, or the loss of its sender. What goes to several ranks is kept once.
  struct Item {
    Incoming::Kind kind = Incoming::Kind::Nothing;
    int from = -1;
    std::shared_ptr<const std::string> bytes = nullptr;
    bool has_arrived = false;
  };
  /// What one rank sends to another arrives in order, the loss of the sender last.
  struct Way {
    std::uint64_t taken = 0;  ///< items that are not here any more
    std::list<Item> items;
  };
  struct Mailbox {
    std::list<Item> incoming;
    std::map<int, Way> ways;  ///< by sender
    bool is_open = true;
  };

  Mailbox& mailbox(int rank) { return mailboxes_[static_cast<std::size_t>(rank)]; }
  bool share_host(int a, int b) const;
  Duration cost_of(int rank, int peer) const;
  void send(int from, int to, std::string_view message);
  std::uint64_t add(int to, Item item);
  void arrive(int from, int to, std::uint64_t number);

  const SimulationOptions& options_;
  SimulatedNetwork& network_;
  RankFibers& fibers_;
  const Topology tree_;  ///< of rank 0
  const Duration round_, message_, overhead_;
  std::vector<Mailbox> mailboxes_;
  std::shared_ptr<const std::string> last_sent_ = std::make_shared<const std::string>();
  std::vector<Board::Word> words_;    ///< of the board, once there is one
  std::vector<Board::Sleep> asleep_;  ///< by rank
};

}  // namespace ronde
