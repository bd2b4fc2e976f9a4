// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backends/socket/rendezvous.h"

// What ranks compare before they connect, where Ronde's own MPI does not tell it.
namespace ronde::net {

/// Numbers that a rank was started with, and the host that it found out itself.
struct StartFacts {
  int size = 0;
  int local_rank = -1;  ///< -1: not known
  std::string host = {};
};

/// Throws UsageError unless `rank` is one of 0 to `size` - 1.
void check_numbers(int rank, int size);

/// Exchanges the facts, unless there is one rank. Throws UsageError, on every rank, if the ranks
/// disagree on their number or on a local rank, or are on several hosts and must not be.
void compare_facts(const StartFacts& own, bool one_host, const Exchange& exchange);

}  // namespace ronde::net
