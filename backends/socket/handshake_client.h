// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "backends/socket/endpoint.h"
#include "backends/socket/rendezvous.h"
#include "backends/socket/sockets.h"
#include "core/src/base/unique_fd.h"

namespace ronde::net {

/// The child's side of the handshake: connects to all addresses of its parent at the same time, and
/// takes the first one that proves to be the parent.
class HandshakeClient {
 public:
  HandshakeClient(int rank, int parent, const Endpoint& endpoint, std::vector<Address> addresses)
      : rank_(rank), parent_(parent), endpoint_(endpoint), addresses_(std::move(addresses)) {}

  UniqueFd run(Clock::time_point deadline);

 private:
  enum class State { Connecting, Connected, AwaitingReply };
  struct Attempt {
    UniqueFd socket;
    std::size_t address = 0;
    State state = State::Connecting;
    std::string received = {};
    Clock::time_point deadline = {};
  };

  void start_all();
  std::optional<UniqueFd> advance_all(Clock::time_point deadline);
  /// False: the attempt failed and `errors_` says why.
  bool advance(Attempt& attempt);
  bool finish_connect(Attempt& attempt);
  bool say_hello(Attempt& attempt);
  bool read_reply(Attempt& attempt);
  bool proved(const Attempt& attempt) const { return attempt.received == endpoint_.reply_token; }
  bool fail(const Attempt& attempt, const std::string& why);

  int rank_;
  int parent_;
  const Endpoint& endpoint_;
  std::vector<Address> addresses_;
  std::vector<Attempt> attempts_;
  std::vector<std::string> errors_ = std::vector<std::string>(addresses_.size());
};

}  // namespace ronde::net
