// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>
#include <vector>

#include "core/src/queue/submission_queue.h"
#include "core/src/schedule/frozen_schedule.h"
#include "core/src/sets/set_engine.h"
#include "core/src/submit/submission.h"
#include "ronde/device.h"

namespace ronde {

// How operations of this rank end. All of it runs where the loop does.

/// Note [Buffers after a group error]
/// A library may write into the memory of an operation that it will never complete. So backends
/// only see memory that Ronde owns and abandons on failure (PackingBackend), or must prevent it
/// themselves (Backend::abort); a user's buffers are free once the Work is done, with or without an
/// error. Symmetric buffers are not: a peer that has yet to learn of the failure may write its last
/// chunk there, into memory that stays mapped.

/// Ends the operation, or each one of the group: with success if `error` is null.
void complete(SubmissionQueue& queue, Submission& submission, std::exception_ptr error,
              bool contributed);

/// A device will come to `event` once it has the result.
void note_queued(SubmissionQueue& queue, Submission& submission,
                 std::shared_ptr<const DeviceEvent> event);

/// The group is dead: aborts the backends of these sets, and ends with `error` every operation that
/// they, `schedule` (if not null) and the queue hold.
void fail_operations(const std::vector<SetEngine*>& sets, FrozenSchedule* schedule,
                     SubmissionQueue& queue, const std::exception_ptr& error);

}  // namespace ronde
