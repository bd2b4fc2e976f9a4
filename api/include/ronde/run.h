// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "ronde/process_set.h"

namespace ronde {

/// Adds what the shutdown() of the world of `set` calls at its beginning, while the operations of
/// all ranks still run: for work in the background that must not be cut off. What it throws,
/// shutdown() throws once it is done, unless it fails itself. Returns a number for
/// remove_shutdown_hook(). Thread-safe.
std::uint64_t add_shutdown_hook(std::function<void()> hook, ProcessSet set = kGlobalSet);
/// Waits while the hook runs. Not to be called from a hook.
void remove_shutdown_hook(std::uint64_t number, ProcessSet set = kGlobalSet);

/// Tells `ronde run` that a checkpoint of this step is complete, so that it can say so if the job
/// fails. Does nothing under another launcher, nor for a World.
void note_checkpoint(std::int64_t step, ProcessSet set = kGlobalSet);

/// Whether this elastic job (ronde/reform.h) had a group before all ranks of the present one had
/// come: if none of them has a state, that of the job is lost.
bool job_goes_on() noexcept;

/// "rank 2", or "rank 2 of world 'actor'"; empty where the world of `set` does not live.
std::string rank_text(ProcessSet set);

}  // namespace ronde
