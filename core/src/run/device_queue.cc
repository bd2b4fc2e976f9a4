// SPDX-License-Identifier: Apache-2.0
#include "core/src/run/device_queue.h"

#include <utility>

namespace ronde {

void DeviceQueue::add(Bucket& bucket, const std::shared_ptr<const DeviceEvent>& event) {
  const std::size_t first = queued_.size();
  // All are queued before any is delivered: if the device fails meanwhile, drain() returns them.
  for (Submission& item : bucket.items) {
    queued_.push_back({std::move(item), bucket.error, event, Clock::now()});
  }
  for (std::size_t i = first; i < queued_.size(); ++i) {
    OnDevice& queued = queued_[i];
    if (!queued.error) queued.error = deliver(queued);
    counters_.queued.add();
    if (!queued.error) mark_queued(queue_, queued.item, queued.event);
  }
}

/// Work that Request::finish queues belongs to the operation, which ends with it.
std::exception_ptr DeviceQueue::deliver(OnDevice& queued) const {
  const Start& start = queued.item.start;
  if (!start.finish) return results_.deliver(queued.item);
  queued.event->order(start.stream);
  std::exception_ptr error = results_.deliver(queued.item);
  const Backend& backend = *backends_.at(queued.item.spec().device);
  queued.event = backend.device_streams()->mark(queued.item.device_index, start.stream);
  return error;
}

bool DeviceQueue::complete_passed() {
  bool has_passed = false;
  while (!queued_.empty() && queued_.front().event->passed()) {
    OnDevice passed = std::move(queued_.front());
    queued_.pop_front();
    counters_.passed.add();
    complete(queue_, passed.item, passed.error, passed.item.contributed);
    has_passed = true;
  }
  return has_passed;
}

std::string DeviceQueue::overdue(Clock::time_point now,
                                 std::optional<Clock::duration> limit) const {
  for (const OnDevice& queued : queued_) {
    const Submission& item = queued.item;
    const bool is_late = item.deadline && now >= *item.deadline;
    if (!is_late && (!limit || now - queued.started < *limit)) continue;
    return display_name(item.key) + " has been queued on the GPU of rank " +
           std::to_string(rank_of_group_) + " for longer than " +
           (is_late ? "its timeout" : "RONDE_STALL_ABORT_S") +
           ": does the GPU hang, or wait for one that does?";
  }
  return {};
}

std::vector<Submission> DeviceQueue::drain() {
  std::vector<Submission> drained;
  for (OnDevice& queued : queued_) drained.push_back(std::move(queued.item));
  queued_.clear();
  return drained;
}

}  // namespace ronde
