// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backends/socket/handshake.h"
#include "backends/socket/rendezvous.h"
#include "core/src/base/system.h"

namespace ronde::net {

/// The side of the handshake that listens: accepts connections until every child has proved itself.
class HandshakeServer {
 public:
  /// `port`: the TCP port, for texts.
  HandshakeServer(int rank, std::vector<int> children, Credentials credentials,
                  std::vector<UniqueFd> listeners, std::uint16_t port)
      : rank_(rank),
        children_(std::move(children)),
        credentials_(std::move(credentials)),
        listeners_(std::move(listeners)),
        port_(port) {}

  /// Adds to `meeting` the children that connect before `deadline`, or before the first of them
  /// would give up, and those that are missing then.
  void run(Clock::time_point deadline, Meeting& meeting);

  /// Tells the children that connect before `deadline` that `silent`, a rank above this one, does
  /// not answer.
  void turn_away(int silent, Clock::time_point deadline);

  /// When the first of the connected children would give up.
  Clock::time_point deadline() const noexcept { return deadline_; }

 private:
  struct PendingPeer {
    UniqueFd socket;
    bool tcp = false;
    Greeting greeting;
    std::string received;
    Clock::time_point deadline;
    bool finished = false;
  };

  /// Accepts and answers connections until every child has an answer, or the deadline.
  void serve(Clock::time_point deadline);
  /// Accepts connections; drops the oldest pending one where there are too many.
  void accept_from(const UniqueFd& listener);
  void drop_oldest(const std::string& why);
  void greet(PendingPeer& pending) const;
  void read_hello(PendingPeer& pending);
  void answer(PendingPeer& pending, const Hello& hello);
  Verdict verdict_on(const PendingPeer& pending, const Hello& hello) const;
  std::vector<pollfd> watched() const;
  std::vector<int> missing() const;
  std::string missing_text(std::chrono::seconds waited) const;

  const int rank_;
  const std::vector<int> children_;
  const Credentials credentials_;
  std::vector<UniqueFd> listeners_;
  const std::uint16_t port_;
  Clock::time_point deadline_ = {};
  std::optional<int> silent_;  ///< turn_away()
  std::map<int, Peer> peers_;  ///< by rank: admitted, or turned away
  std::vector<PendingPeer> pending_;
  int refused_ = 0;
  std::string last_refusal_;
};

}  // namespace ronde::net
