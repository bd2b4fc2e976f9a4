// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>

#include "core/src/op/submission_queue.h"
#include "ronde/device.h"

namespace ronde {

// How operations of this rank end. All of it runs where the loop does.

/// Ends the operation, or each one of the group: with success if `error` is null.
void complete(SubmissionQueue& queue, Submission& submission, std::exception_ptr error,
              bool contributed);

/// A device will come to `event` once it has the result.
void note_queued(SubmissionQueue& queue, Submission& submission,
                 std::shared_ptr<const DeviceEvent> event);

}  // namespace ronde
