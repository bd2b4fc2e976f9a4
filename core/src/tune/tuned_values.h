// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "ronde/config.h"
#include "ronde/log.h"
#include "ronde/runtime.h"
#include "ronde/topology.h"

namespace ronde {

/// Rank 0's choice from the file RONDE_TUNED, as "NAME=value" lines for with_values(): what the
/// user has not set. Empty if the file is for another number of ranks or hosts, which it logs, or
/// is of no use; then it also drops `options.tuning.known`.
std::string tuned_values(RuntimeOptions& options, const Topology& topology, const Logger& log);

/// `config` with these values. Throws UsageError.
Config with_values(Config config, std::string_view lines);

}  // namespace ronde
