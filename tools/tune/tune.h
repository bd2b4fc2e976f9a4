// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

namespace ronde::tool {

/// Adds `tune` to the command; `exit_code` is what the process shall end with: 2 after an error of
/// usage, 1 after any other.
void add_tune(CLI::App& app, int& exit_code);

}  // namespace ronde::tool
