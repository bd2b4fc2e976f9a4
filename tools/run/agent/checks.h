// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/run/base/frames.h"
#include "tools/run/base/poll.h"

namespace ronde::tool::launch {

/// `order`: "folder", "program", "search_path", "ranks" (of this host), "size" (of the job),
/// "restart".
Findings check_host(const Json& order);

/// Two TCP ports, one after the other, that nobody else is given while this lives: MASTER_PORT and
/// the one after it, where rank 0 listens. They can be listened at, as both sides set SO_REUSEADDR.
struct ReservedPorts {
  Fd first, second;
  int number = 0;  ///< of the first
};
ReservedPorts reserve_ports();

}  // namespace ronde::tool::launch
