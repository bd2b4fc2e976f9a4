// SPDX-License-Identifier: Apache-2.0
// Operations on devices: what they wait for, and what is done once they are queued and once they
// are over.
#include <utility>

#include "core/src/execute/executor.h"

namespace ronde {

/// To be asked once the memory of the result is there.
Placement Executor::place(Bucket& bucket, const Backend& backend) const {
  Device device = bucket.items.front().submission.request.device;
  if (device.kind == DeviceKind::Cpu) return {.device = device};
  for (const Agreed& item : bucket.items) {
    if (!item.submission.ready) continue;  // this rank has joined
    const Request& request = item.submission.request;
    device = request.device;
    bucket.after.push_back(item.submission.ready);
    // Memory that the program has just made may have been another tensor's, which is still read.
    if (may_allocate(request.kind)) {
      bucket.after.push_back(backend.device_streams()->mark(device.index, request.stream));
    }
  }
  return {.device = device, .after = bucket.after};
}

/// Whoever can wait on a stream need not wait for the device.
void Executor::queue_on_device(Bucket& bucket, const std::shared_ptr<const DeviceEvent>& event) {
  const std::size_t first = queued_.size();
  // All before any: should the device fail meanwhile, the group finds them here when it ends.
  for (Agreed& item : bucket.items) {
    queued_.push_back({std::move(item), bucket.error, event, Clock::now()});
  }
  for (std::size_t i = first; i < queued_.size(); ++i) {
    OnDevice& queued = queued_[i];
    if (!queued.error) queued.error = end_on_device(queued);
    counters_.queued_on_device.add();
    if (!queued.error) tell_queued_(queued.item.submission, queued.event);
  }
}

/// What Request::finish queues belongs to the operation: it is over once that is.
std::exception_ptr Executor::end_on_device(OnDevice& queued) {
  Agreed& item = queued.item;
  const Request& request = item.submission.request;
  if (!request.finish) return end(item);
  queued.event->order(request.stream);
  std::exception_ptr error = end(item);
  const Backend& backend = *backends_.at(item.submission.meta.device);
  queued.event = backend.device_streams()->mark(request.device.index, request.stream);
  return error;
}

bool Executor::finish_passed() {
  bool has_passed = false;
  while (!queued_.empty() && queued_.front().event->passed()) {
    OnDevice passed = std::move(queued_.front());
    queued_.pop_front();
    counters_.passed_on_device.add();
    complete_(passed.item.submission, passed.error, passed.item.contributed);
    has_passed = true;
  }
  return has_passed;
}

std::string Executor::overdue_on_device(Clock::time_point now,
                                        std::optional<Clock::duration> limit) const {
  for (const OnDevice& queued : queued_) {
    const Submission& submission = queued.item.submission;
    const bool is_late = submission.deadline && now >= *submission.deadline;
    if (!is_late && (!limit || now - queued.started < *limit)) continue;
    return display_name(submission.meta, submission.key) + " has been queued on the GPU of rank " +
           std::to_string(rank_of_group_) + " for longer than " +
           (is_late ? "its timeout" : "RONDE_STALL_ABORT_S") +
           ": does the GPU hang, or wait for one that does?";
  }
  return {};
}

}  // namespace ronde
