// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ronde/error.h"

// Note [After fork]
// A child of fork() has a copy of the Runtime, but not its thread. What it said
// over the copied sockets, or wrote to shared memory, would count as its
// parent's. So in a child every call is refused, before it asks for a lock that
// a thread of the parent may have held at the fork, but for shutdown() and
// leave(), which do nothing; and the Runtime is not joined, closed or freed.
namespace ronde {

/// How many forks lie between this process and the one that called this first:
/// what was made at another depth belongs to a parent.
int fork_depth();

/// `what` ("ronde::rank()") was called in a child.
UsageError error_after_fork(const std::string& what);

}  // namespace ronde
