// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
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

  /// While it exists, new batches belong to `owner`.
  class Owner {
   public:
    Owner(MessageExchange& exchange, Progressing& owner) : exchange_(exchange) {
      exchange_.owner_ = &owner;
    }
    ~Owner() { exchange_.owner_ = nullptr; }
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;

   private:
    MessageExchange& exchange_;
  };

 private:
  class Batch;
  class End;

  struct Sent {
    int from = 0;
    int to = 0;
    MessageTag tag = {};
    std::size_t bytes = 0;
    Batch* batch = nullptr;  ///< of the sender; null: nobody waits for it
    bool has_left = false;
    bool has_arrived = false;
  };
  using Index = Pool<Sent>::Index;
  struct Arrived {
    int from;
    MessageTag tag;
    std::size_t bytes;
  };
  struct Receive {
    int from;
    MessageTag tag;
    std::size_t bytes;
    Batch* batch;
  };
  /// What of a rank has no counterpart yet, in the order of posting or arrival.
  struct Unmatched {
    std::vector<Receive> receives;
    std::vector<Arrived> arrived;
  };

  void send(int from, int to, MessageTag tag, std::size_t bytes, Batch& batch);
  /// Returns whether the message has arrived already.
  bool receive(int to, const Receive& receive);
  void leave(Index index);
  void arrive(Index index);
  void take_if_over(Index index);
  void charge(int rank, const Sent& message);
  void forget(const Batch& batch);

  SimulatedNetwork& network_;
  const SimulationOptions& options_;
  Progressing* owner_ = nullptr;
  Pool<Sent> sent_;
  std::vector<Unmatched> unmatched_;  ///< by rank
};

}  // namespace ronde
