// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <vector>

#include "core/src/agree/frozen_schedule.h"
#include "core/src/loop/set_engines.h"
#include "core/src/op/submission_queue.h"

namespace ronde {

/// Note [Buffers after a group error]
/// A library may write into the memory of an operation that it will never complete. So backends
/// only see memory that Ronde owns and abandons on failure (PackingBackend), or must prevent it
/// themselves (Backend::abort); a user's buffers are free once the Work is done, with or without an
/// error. Symmetric buffers are not: a peer that has yet to learn of the failure may write its last
/// chunk there, into memory that stays mapped.

/// The group is dead: aborts the backends of these sets, and ends with `error` every operation that
/// they, `schedule` (if not null) and the queue hold.
void fail_operations(const std::vector<SetEngine*>& sets, FrozenSchedule* schedule,
                     SubmissionQueue& queue, const std::exception_ptr& error);

}  // namespace ronde
