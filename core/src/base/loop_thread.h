// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ronde/error.h"

namespace ronde {

/// Whether this thread is the one of a Runtime, which calls the program back: it must not wait for
/// operations.
bool is_loop_thread() noexcept;

/// Called at its start.
void note_loop_thread() noexcept;

/// shutdown() was called on it.
UsageError error_of_shutdown_in_callback();

}  // namespace ronde
