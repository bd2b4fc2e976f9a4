// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "tools/bench/base/bench_options.h"
#include "tools/bench/base/gpu_pages.h"

namespace ronde::tool {

class Session;

/// Adds `bench` to the command; `exit_code` is what the process shall end with: 2 after a
/// UsageError, 1 after any other error. `access`: where GPUs are.
void add_bench(CLI::App& app, int& exit_code, const GpuAccess& access = {});

/// Runs `measure` in a Session of all ranks, for the command `name`; returns the exit code. If all
/// ranks fail alike, they leave together and rank 0 reports it; after any other error this rank
/// just ends, and the launcher ends the others.
int run_session(const std::string& name, const BenchOptions& options, const GpuAccess& access,
                const std::function<void(Session&)>& measure);

/// The rank that the launcher gave to this process, before any rank has met another: rank 0 alone
/// reports what all ranks find wrong alike. 0 without a launcher.
int launched_rank();

}  // namespace ronde::tool
