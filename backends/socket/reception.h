// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <chrono>
#include <string>
#include <vector>

#include "backends/socket/invitation.h"
#include "backends/socket/rendezvous.h"
#include "backends/socket/unique_fd.h"

namespace ronde::net {

/// Rank 0's side: takes connections until every other rank has proved itself.
class Reception {
 public:
  Reception(int size, const Invitation& invitation, std::vector<UniqueFd> listeners)
      : invitation_(invitation),
        listeners_(std::move(listeners)),
        peers_(static_cast<std::size_t>(size)) {}

  std::vector<Peer> run(Clock::time_point deadline);

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
  [[noreturn]] void fail(std::chrono::seconds waited) const;

  const Invitation& invitation_;
  std::vector<UniqueFd> listeners_;
  std::vector<Peer> peers_;  ///< by rank; [0] stays empty
  std::vector<Guest> guests_;
  int refused_ = 0;
};

}  // namespace ronde::net
