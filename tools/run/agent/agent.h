// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace ronde::tool::launch {

/// What an agent calls its version: a launcher talks to one of its own alone.
std::string agent_version();

/// `ronde run --agent`: starts the ranks of its host as the launcher orders on standard input, and
/// writes their output and ends to standard output. When its input ends, so do its ranks. Returns
/// the exit code.
int run_agent();

}  // namespace ronde::tool::launch
