// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include "tools/bench/setups.h"

namespace ronde::tool {

/// Adds `bench` to the command; `exit_code` is what the process shall end with: 2 after a
/// UsageError, 1 after any other error. `access`: where GPUs are.
void add_bench(CLI::App& app, int& exit_code, const GpuAccess& access = {});

}  // namespace ronde::tool
