// SPDX-License-Identifier: Apache-2.0
#include "core/src/op/completion.h"

#include <utility>

namespace ronde {

/// The name is free for the program's next step; the owner of the buffers has to stay.
void note_queued(SubmissionQueue& queue, Submission& submission,
                 std::shared_ptr<const DeviceEvent> event) {
  if (!submission.work) return;  // of a rank that has joined
  queue.release(submission);
  submission.is_released = true;
  if (submission.digest == kDigestsDiffer) submission.work->set_digests_differ();
  submission.work->set_queued(std::move(event));
}

namespace {

EventKind kind_of_end(const Submission& submission, bool failed) {
  if (submission.is_abandoned) return EventKind::Abandoned;
  return failed ? EventKind::Failed : EventKind::Completed;
}

}  // namespace

void complete(SubmissionQueue& queue, Submission& submission, std::exception_ptr error,
              bool contributed) {
  for (Submission& member : submission.members) complete(queue, member, error, contributed);
  if (submission.is_group()) return;
  if (!submission.work) return;  // of a rank that has joined
  // The name is free, and the owner of the buffers released, before anybody can see the end.
  if (!submission.is_released) queue.release(submission);
  submission.start = {};
  if (!submission.end_is_noted || error) {
    const bool was_run = submission.ended != EventLog::Clock::time_point();
    const auto ended = was_run ? submission.ended : EventLog::Clock::now();
    queue.events().write({.time_ns = EventLog::ns_of(ended),
                          .kind = kind_of_end(submission, error != nullptr),
                          .collective = submission.spec().kind,
                          .set = submission.spec().set,
                          .operation = submission.number});
  }
  // Unless it was when it was queued: the program may be asking.
  if (!submission.is_released && submission.digest == kDigestsDiffer) {
    submission.work->set_digests_differ();
  }
  submission.work->complete(std::move(error), contributed);
}

}  // namespace ronde
