// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ronde/config.h"
#include "ronde/runtime.h"
#include "ronde/tuning.h"

namespace ronde {

/// Reads a file of RONDE_TUNED: a JSON object of one layout. Returns nothing if there is none, or
/// if it cannot be used here; then `problem` says why, and is empty otherwise.
std::optional<TunedSettings> read_tuned(const std::string& path, std::string& problem);

/// Replaces the file, so that a reader sees the old one or the new one. Returns why it cannot;
/// empty if it has.
std::string write_tuned(const std::string& path, const TunedSettings& settings);

/// Fills in `options.tuning` for the variables in `options.config`: reads RONDE_TUNED, and writes
/// what the search finds to it and to RONDE_AUTOTUNE_LOG. A file that cannot be read or written
/// is a warning.
void add_tuning(const std::vector<ConfigSource>& sources, RuntimeOptions& options,
                std::vector<std::string>& warnings);

}  // namespace ronde
