// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "backends/socket/invitation.h"
#include "backends/socket/rendezvous.h"
#include "core/src/base/unique_fd.h"

namespace ronde::net {

/// The parent's side of the handshake: takes connections until every child has proved itself.
class Reception {
 public:
  Reception(int rank, std::vector<int> children, const Invitation& invitation,
            std::vector<UniqueFd> listeners)
      : rank_(rank),
        children_(std::move(children)),
        invitation_(invitation),
        listeners_(std::move(listeners)) {}

  /// Adds the children to `meeting`: those that come until `deadline`, and those that do not.
  void run(Clock::time_point deadline, Meeting& meeting);

 private:
  struct Guest {
    UniqueFd socket;
    bool tcp = false;
    std::string received;
    Clock::time_point deadline;
    bool finished = false;
  };

  void accept_from(const UniqueFd& listener);
  void read_hello(Guest& guest);
  void admit(Guest& guest, int rank);
  std::vector<pollfd> watched() const;
  std::vector<int> missing() const;
  std::string missing_text(std::chrono::seconds waited) const;

  const int rank_;
  const std::vector<int> children_;
  const Invitation& invitation_;
  std::vector<UniqueFd> listeners_;
  std::map<int, Peer> peers_;  ///< by rank
  std::vector<Guest> guests_;
  int refused_ = 0;
};

}  // namespace ronde::net
