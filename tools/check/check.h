// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include "ronde/plugin/factory.h"

namespace ronde::tool {

/// Adds `check` to the command; `exit_code` is what the process shall end with: 1 if a byte was
/// wrong, 2 after a UsageError. `more`: transports that are checked beside those of the job.
void add_check(CLI::App& app, int& exit_code, const BackendRegistry& more = {});

}  // namespace ronde::tool
