// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

namespace ronde::tool {

/// Adds `prof` to the command; `exit_code` is what the process shall end with: 2 after input that
/// cannot be read, 1 after any other error.
void add_prof(CLI::App& app, int& exit_code);

}  // namespace ronde::tool
