// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "ronde/config.h"
#include "ronde/runtime.h"

namespace ronde {

/// Fills in `options.tuning` for the variables in `options.config`: reads RONDE_TUNED, and has what
/// the search finds written to it and to RONDE_AUTOTUNE_LOG. A file that cannot be read or written
/// is a warning.
void add_tuning(const std::vector<ConfigSource>& sources, RuntimeOptions& options,
                std::vector<std::string>& warnings);

}  // namespace ronde
