// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/bench/session.h"

namespace ronde::tool {

/// Copies memory, on rank 0 alone and on all ranks at the same time: the floor under every other
/// benchmark of one host. Collective.
void run_memcpy(Session& session);

}  // namespace ronde::tool
