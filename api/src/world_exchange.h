// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "api/src/start_options.h"
#include "backends/compose.h"

namespace ronde {

/// How ranks of a set meet, each of which calls it, by messages of the world of the set. `name`:
/// of the world that they make. Throws UsageError if they are no ranks of it, this one among them.
MetRanks meet_within(const RanksOfSet& ranks, const std::string& name,
                     std::chrono::nanoseconds timeout);

}  // namespace ronde
