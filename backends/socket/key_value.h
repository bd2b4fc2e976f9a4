// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "ronde/config.h"
#include "ronde/error.h"
#include "ronde/key_value_start.h"
#include "ronde/plugin/transport.h"

/// The transport of ranks that no MPI launcher started, for programs that put a Runtime together.
namespace ronde {

/// The call of put or get that a start is in, for threads that wait for the start.
///
/// Thread-safety: every member may be called from any thread.
class KeyValueCalls {
 public:
  /// `rank` calls; `what` for texts: "get('ronde/0/1') of the key-value store".
  void begin(int rank, std::string what);
  void end();

  /// An error of the rank that is in a call, which names the call; nothing if it is in none.
  std::optional<GroupError> hanging() const;

 private:
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  int rank_ = -1;
  std::string what_;  // empty: none
  std::chrono::steady_clock::time_point since_;
};

struct KeyValueOptions {
  KeyValueStart start;
  /// How long to wait for the other ranks, in seconds (RONDE_INIT_TIMEOUT_S).
  double init_timeout_s = 120.0;
  /// An identity other than this host's (RONDE_HOST_ID). Ranks of different ones use TCP.
  std::string host = {};
  /// TCP may use 127.0.0.1, which another machine could not.
  bool offer_loopback = false;
  /// Refuse ranks of several hosts: there is nothing to move their data with.
  bool one_host = true;
  std::string job_key = {};  ///< RONDE_JOB_KEY
  PortRange ports = {};      ///< RONDE_PORT_RANGE
  /// Is told of every call of the store, unless it is null.
  std::shared_ptr<KeyValueCalls> calls = nullptr;
};

/// Makes the transport: meets the other ranks on the thread that calls it. A single rank needs no
/// store. Throws UsageError for numbers that make no sense and, on every rank, if the ranks
/// disagree on their number, on a local rank, or are on several hosts and must not be; GroupError
/// naming the ranks that are missing once init_timeout_s has passed, or if a callback threw.
std::function<std::unique_ptr<Transport>()> key_value_transport_factory(KeyValueOptions options);

}  // namespace ronde
