// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/bench/session.h"

namespace ronde::tool {

/// Exchanges the whole gradient list of each model: every tensor submitted asynchronously, the last
/// parameter's first, then all waited for. Takes turns with plain MPI (one call a tensor; one call
/// for all, packed before and unpacked behind it) and with copying the bytes once, on all ranks at
/// the same time, which no exchange can undercut. Collective.
void run_exchange(Session& session);

}  // namespace ronde::tool
