// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

namespace ronde::tool {

/// Adds `top` to the command; `exit_code` is what the process shall end with: 1 if no job runs.
void add_top(CLI::App& app, int& exit_code);

}  // namespace ronde::tool
