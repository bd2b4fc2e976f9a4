// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ronde::tool::launch {

/// `ronde run --agent`: starts the ranks of its host as the launcher orders on standard input, and
/// writes their output and ends to standard output. When its input ends, so do its ranks. Returns
/// the exit code.
int run_agent();

}  // namespace ronde::tool::launch
