// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ronde/error.h"

// Note [After fork]
// A child of fork() has a copy of the Runtime, but not its thread. Whatever it sends over the
// copied sockets, or writes to shared memory, would count as its parent's. So in a child every call
// is refused, before it takes a lock that a thread of the parent may have held at the fork; only
// shutdown() and leave() do nothing, and the Runtime is not joined, closed or freed. The program's
// own calls reach shared memory as well, through gradients that live there. So a child has private
// pages in place of this rank's part of the symmetric heap, and none in place of other shared
// memory (SharedMapping). Hooks of gradients do nothing there.
namespace ronde {

/// The number of forks between this process and the one that called this first: objects made at
/// another depth belong to a parent.
int fork_depth();

/// `what` ("ronde::rank()") was called in a child.
UsageError error_after_fork(const std::string& what);

}  // namespace ronde
