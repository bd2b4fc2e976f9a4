// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include "tools/bench/base/gpu_pages.h"

namespace ronde::tool {

/// Adds `bench` to the command; `exit_code` is what the process shall end with: 2 after a
/// UsageError, 1 after any other error. `access`: where GPUs are.
void add_bench(CLI::App& app, int& exit_code, const GpuAccess& access = {});

/// The rank that the launcher gave to this process, before any rank has met another: rank 0 alone
/// reports what all ranks find wrong alike. 0 without a launcher.
int launched_rank();

}  // namespace ronde::tool
