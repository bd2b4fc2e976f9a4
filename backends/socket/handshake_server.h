// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "backends/socket/endpoint.h"
#include "backends/socket/rendezvous.h"
#include "core/src/base/unique_fd.h"

namespace ronde::net {

/// The parent's side of the handshake: takes connections until every child has proved itself.
class HandshakeServer {
 public:
  HandshakeServer(int rank, std::vector<int> children, const Endpoint& endpoint,
                  std::vector<UniqueFd> listeners)
      : rank_(rank),
        children_(std::move(children)),
        endpoint_(endpoint),
        listeners_(std::move(listeners)) {}

  /// Adds the children to `meeting`: those that come until `deadline`, and those that do not.
  void run(Clock::time_point deadline, Meeting& meeting);

 private:
  struct PendingPeer {
    UniqueFd socket;
    bool tcp = false;
    std::string received;
    Clock::time_point deadline;
    bool finished = false;
  };

  void accept_from(const UniqueFd& listener);
  void read_hello(PendingPeer& pending);
  void admit(PendingPeer& pending, int rank);
  std::vector<pollfd> watched() const;
  std::vector<int> missing() const;
  std::string missing_text(std::chrono::seconds waited) const;

  const int rank_;
  const std::vector<int> children_;
  const Endpoint& endpoint_;
  std::vector<UniqueFd> listeners_;
  std::map<int, Peer> peers_;  ///< by rank
  std::vector<PendingPeer> pending_;
  int refused_ = 0;
};

}  // namespace ronde::net
