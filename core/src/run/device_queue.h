// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/src/base/counter.h"
#include "core/src/base/monotonic_clock.h"
#include "core/src/op/submission_queue.h"
#include "core/src/run/bucket.h"
#include "core/src/run/results.h"

namespace ronde {

/// The operations that devices work on, in the order in which their backends ended: each is
/// completed once its device has reached its event. A wait on a stream returns before that.
///
/// Thread-safety: none (the counters: any thread).
class DeviceQueue {
 public:
  using Clock = MonotonicClock;

  struct Counters {
    Counter queued, passed;
  };

  /// The references outlive this.
  DeviceQueue(const Backends& backends, const Results& results, int rank_of_group,
              SubmissionQueue& queue)
      : backends_(backends), results_(results), rank_of_group_(rank_of_group), queue_(queue) {}

  bool empty() const noexcept { return queued_.empty(); }

  /// Adds the operations of the bucket, whose results the device has at `event`.
  void add(Bucket& bucket, const std::shared_ptr<const DeviceEvent>& event);

  /// Completes the operations whose events have passed. Returns whether there was any.
  bool complete_passed();

  /// Returns why a device has taken too long, as Executor::overdue().
  std::string overdue(Clock::time_point now, std::optional<Clock::duration> limit) const;

  /// Removes and returns all operations.
  std::vector<Submission> drain();

  const Counters& counters() const noexcept { return counters_; }

 private:
  struct OnDevice {
    Submission item;
    std::exception_ptr error;
    std::shared_ptr<const DeviceEvent> event;
    Clock::time_point started;
  };

  std::exception_ptr deliver(OnDevice& queued) const;

  const Backends& backends_;
  const Results& results_;
  const int rank_of_group_;
  SubmissionQueue& queue_;
  std::deque<OnDevice> queued_;
  Counters counters_;
};

}  // namespace ronde
