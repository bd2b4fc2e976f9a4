// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ronde/key_value_start.h"
#include "ronde/transport.h"

/// The transport of ranks that no MPI launcher started, for those who put a Runtime together.
namespace ronde {

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
};

/// Makes the transport: meets the other ranks on the thread that calls it. A single rank needs no
/// store. Throws UsageError for numbers that make no sense and, on every rank, if the ranks
/// disagree on their number, on a local rank, or are on several hosts and must not be; GroupError
/// naming the ranks that are missing once init_timeout_s has passed, or if a callback threw.
std::function<std::unique_ptr<Transport>()> key_value_transport_factory(KeyValueOptions options);

}  // namespace ronde
