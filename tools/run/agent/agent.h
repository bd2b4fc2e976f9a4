// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/run/base/frames.h"
#include "tools/run/base/poll.h"

namespace ronde::tool::launch {

/// `ronde run --agent`: starts the ranks of its host as the launcher orders on standard input, and
/// writes their output and ends to standard output. When its input ends, so do its ranks. Returns
/// the exit code.
int run_agent();

/// Checks whether ranks can start on this host. `order`: "folder", "program", "search_path",
/// "ranks" (of this host), "size" (of the job), "restart".
Findings check_host(const Json& order);

/// Two TCP ports, one after the other, that nobody else is given while this lives: MASTER_PORT and
/// the one after it, where rank 0 listens. They can be listened at, as both sides set SO_REUSEADDR.
struct ReservedPorts {
  Fd first, second;
  int number = 0;  ///< of the first
};
ReservedPorts reserve_ports();

}  // namespace ronde::tool::launch
