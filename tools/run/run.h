// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

namespace ronde::tool {

/// Adds `run` to the command; `exit_code` is what the process shall end with: that of the rank that
/// has failed first, 128 and the number of a signal, or 2 for nonsense.
void add_run(CLI::App& app, int& exit_code);

}  // namespace ronde::tool
