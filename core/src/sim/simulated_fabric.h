// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/src/sim/network.h"
#include "core/src/sim/pool.h"
#include "ronde/plugin/fabric.h"
#include "ronde/simulation.h"

namespace ronde {

/// Something that advances in events of a simulation, such as the end of its messages.
class Progressing {
 public:
  virtual ~Progressing() = default;
  virtual void advance() = 0;
};

/// The messages of all simulated ranks: finds the receiver's part of each, and charges both ranks
/// with the overhead of a message between hosts.
///
/// Thread-safety: none.
class MessageExchange {
 public:
  /// `network` and `options` must outlive it.
  MessageExchange(SimulatedNetwork& network, const SimulationOptions& options);

  /// Makes a rank's end of it. The messages of a batch that end advance what owns the batch.
  std::unique_ptr<Fabric> make_fabric(int rank);

  /// New batches belong to `owner` from now on.
  void set_owner(Progressing& owner) noexcept { owner_ = &owner; }

 private:
  class Batch;
  class End;

  /// What is left of a batch where that was given up: its messages may still end.
  struct Progress {
    Progressing* owner = nullptr;  ///< null: given up
    std::size_t in_progress = 0;
    std::uint64_t ended = 0;
  };
  struct Sent {
    int from = 0;
    int to = 0;
    MessageTag tag = {};
    std::size_t bytes = 0;
  };
  /// A message, or the receive of one, that has no counterpart yet.
  struct Unmatched {
    int from;
    MessageTag tag;
    Pool<Progress>::Index batch;  ///< of the receive
  };
  struct Rank {
    std::vector<Unmatched> receives, messages;  ///< in the order of posting, and of arrival
  };

  void send(const Sent& message, Pool<Progress>::Index batch);
  void receive(int rank, const Unmatched& receive);
  static std::optional<Unmatched> take_match(std::vector<Unmatched>& among, const Unmatched& other);
  void arrive(const Sent& message);
  void charge(int rank, const Sent& message);
  void end_one(Pool<Progress>::Index batch);

  SimulatedNetwork& network_;
  const SimulationOptions& options_;
  Progressing* owner_ = nullptr;
  Pool<Progress> batches_;
  Pool<Sent> sent_;
  std::vector<Rank> ranks_;
};

}  // namespace ronde
