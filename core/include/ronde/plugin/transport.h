// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "ronde/stats.h"
#include "ronde/topology.h"

namespace ronde {

/// The result of Transport::poll.
struct Incoming {
  /// The kind of event.
  enum class Kind {
    Nothing,   ///< no message and no loss
    Message,   ///< `bytes` from `peer`
    PeerLost,  ///< `peer` is lost; `bytes` says how that was noticed. Reported once a peer.
  };
  Kind kind = Kind::Nothing;
  int peer = -1;
  std::string bytes = {};
};

/// The control plane of one rank: small messages to and from its neighbours, and their deaths.
///
/// The neighbours of a rank are its parent and its children in the tree of Topology. Messages
/// between two ranks keep their order; a PeerLost comes after every message that the peer had sent.
/// Only the loss of neighbours is reported: the engine forwards it.
///
/// Thread-safety: send(), poll() and close() are called by one thread at a time, not always the
/// same. wait() is called by one thread, also while another one is in those. Any thread may call
/// wake() and stats().
class Transport {
 public:
  /// The clock of all deadlines.
  using Clock = std::chrono::steady_clock;

  virtual ~Transport() = default;
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// The name for texts and `ronde info`: "mpi", "key-value".
  virtual std::string_view name() const noexcept = 0;

  /// The topology of this rank and the others.
  virtual const Topology& topology() const noexcept = 0;

  /// Returns the time at which all ranks give up their start, if they have agreed on one.
  virtual Clock::time_point start_deadline() const noexcept { return Clock::time_point::max(); }

  /// Queues `message` for `peer`, a neighbour, and returns at once. Messages to a lost peer vanish:
  /// poll() reports the loss.
  virtual void send(int peer, std::string_view message) = 0;

  /// Returns the next message or loss, if there is one; never blocks.
  virtual Incoming poll() = 0;

  /// Blocks until poll() may return a message or loss, until a wake(), until `descriptor` is
  /// readable unless it is -1, at most until `deadline`. Returns whether it was woken. Must not
  /// spin: it leaves the core to threads that compute.
  virtual bool wait(Clock::time_point deadline, int descriptor) = 0;

  /// Waits until `deadline` (a past one: not at all) or a wake() for a message or loss, and returns
  /// it.
  Incoming receive(Clock::time_point deadline);

  /// Makes the current or the next wait() return. Wakes are not counted: many may act as one.
  virtual void wake() noexcept = 0;

  /// Returns an eventfd whose writing is a wake(), for the ranks of this host; -1 if there is none.
  virtual int wake_fd() const noexcept { return -1; }

  /// Tries until `deadline` to pass every queued message to the system, then closes. `graceful`:
  /// all ranks have agreed to stop, so that collective clean-up (finalising MPI) is allowed;
  /// otherwise nothing that waits for a peer may be called.
  virtual void close(bool graceful, Clock::time_point deadline) = 0;

  /// The counters so far. Any thread may call it.
  virtual StatsGroup stats() const = 0;
};

}  // namespace ronde
