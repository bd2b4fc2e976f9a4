// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "backends/socket/handshake.h"
#include "backends/socket/rendezvous.h"
#include "backends/socket/sockets.h"
#include "core/src/base/system.h"

namespace ronde::net {

/// The side of the handshake that connects: to all addresses of its parent at the same time, and
/// again to those that fail. It uses the first one that proves to be the parent.
class HandshakeClient {
 public:
  HandshakeClient(int rank, int parent, const Credentials& credentials,
                  std::vector<Address> addresses)
      : rank_(rank), parent_(parent), credentials_(credentials), addresses_(std::move(addresses)) {}

  /// Tries until the deadline. Throws GroupError that names the parent if none of its addresses
  /// leads to it, the rank by which the parent is cut off, or this rank if the parent refuses it. A
  /// taken rank is no refusal for the first 20 s: the other connection may be that of an earlier
  /// process of this rank, on a host that vanished.
  UniqueFd run(Clock::time_point deadline);

 private:
  enum class State { Connecting, Connected, AwaitingGreeting, AwaitingAnswer, Admitted };
  struct Attempt {
    UniqueFd socket;
    std::size_t address = 0;
    State state = State::Connecting;
    std::string received = {};  ///< bytes of the awaited message
    Clock::time_point deadline = {};
    Greeting greeting = {};
    Hello hello = {};

    /// Whether it waits for a message of the other side.
    bool is_waiting() const {
      return state == State::AwaitingGreeting || state == State::AwaitingAnswer;
    }
  };

  /// When to try an address again.
  struct Retry {
    bool is_due = true;  ///< at `at`; false while there is an attempt
    Clock::time_point at = {};
    std::chrono::milliseconds pause = std::chrono::milliseconds(20);
  };

  void start_due();
  void start(std::size_t address);
  std::optional<UniqueFd> advance_all(Clock::time_point deadline);
  /// Advances an attempt; false if it failed, with the reason in `errors_`.
  bool advance(Attempt& attempt);
  bool finish_connect(Attempt& attempt);
  void await_greeting(Attempt& attempt);
  bool read_message(Attempt& attempt);
  bool send_hello(Attempt& attempt);
  bool handle_answer(Attempt& attempt);
  bool fail(std::size_t address, const std::string& why);

  int rank_;
  int parent_;
  const Credentials& credentials_;
  Clock::time_point deadline_ = {};
  std::vector<Address> addresses_;
  std::vector<Attempt> attempts_;
  std::vector<std::string> errors_ = std::vector<std::string>(addresses_.size());
  std::string taken_text_;              ///< the refusal if the rank is taken
  Clock::time_point taken_until_ = {};  ///< from when on that counts as a refusal
  std::vector<Retry> retries_ = std::vector<Retry>(addresses_.size());
};

}  // namespace ronde::net
