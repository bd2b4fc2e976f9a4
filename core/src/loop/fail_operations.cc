// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <mutex>
#include <utility>

#include "core/src/base/monotonic_clock.h"
#include "core/src/loop/control_plane.h"
#include "core/src/op/submission_queue.h"

namespace ronde {
namespace {

/// Time limit for work that is queued on devices when the group has failed.
constexpr std::chrono::seconds kDeviceBound{2};
/// How long one device is waited for before the next one is checked.
constexpr std::chrono::milliseconds kDeviceTurn{10};

/// Keeps the owners of the memory, and callbacks, until the process ends, as a device that hangs
/// may still write there at any time.
void abandon_buffers(std::vector<Submission>& submissions) {
  static std::mutex mutex;
  static auto* const kKept = new std::vector<Start>();
  const std::lock_guard lock(mutex);
  for (Submission& submission : submissions) {
    kKept->push_back(std::exchange(submission.start, {}));
  }
}

/// The work that a set of the failed group has begun on a device.
struct DeviceWork {
  std::shared_ptr<DeviceStreams> streams;
  std::vector<Submission>* submissions;
};

/// Waits for the devices of all sets at once, as work of one may be queued behind that of another.
/// The first half of the time lets work end by itself, as healthy ranks may still do their part;
/// then its waits for other ranks are cancelled.
void drain_devices(std::vector<DeviceWork> works) {
  const auto begin = MonotonicClock::now();
  const auto waited = [&] { return MonotonicClock::now() - begin; };
  const auto drain = [&] {
    std::erase_if(works, [](const DeviceWork& work) {
      const DrainStatus status = work.streams->drain(kDeviceTurn);
      if (status == DrainStatus::Unknown) abandon_buffers(*work.submissions);
      return status != DrainStatus::NotYet;
    });
  };
  while (!works.empty() && 2 * waited() < kDeviceBound) drain();
  bool is_last = false;
  while (!works.empty() && !is_last) {
    is_last = waited() >= kDeviceBound;
    for (const DeviceWork& work : works) work.streams->cancel_waits();
    drain();
  }
  for (const DeviceWork& work : works) abandon_buffers(*work.submissions);
}

void abandon(Submission& submission) {
  submission.is_abandoned = true;
  for (Submission& member : submission.members) abandon(member);
}

}  // namespace

void ControlPlane::fail(const std::exception_ptr& error) {
  const std::vector<SetEngine*>& sets = sets_.running();
  // Backends first: from here on no buffer of the program is accessed.
  for (SetEngine* set : sets) {
    for (auto& [device, backend] : set->backends) backend->abort();
  }
  const auto fail = [&](auto submissions) {
    for (Submission& submission : submissions) {
      abandon(submission);
      complete(queue_, submission, error, true);
    }
  };
  std::vector<std::vector<Submission>> drained(sets.size());
  std::vector<DeviceWork> on_devices;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    SetEngine& set = *sets[i];
    drained[i] = set.executor->drain();
    if (set.executor->has_begun_on_device()) {
      on_devices.push_back({set.backends.at(DeviceKind::Cuda)->device_streams(), &drained[i]});
    } else {
      fail(std::exchange(drained[i], {}));
    }
  }
  drain_devices(std::move(on_devices));
  for (std::vector<Submission>& submissions : drained) fail(std::move(submissions));
  if (schedule_) fail(schedule_->drain());
  for (SetEngine* set : sets) fail(set->announcer->drain());
  fail(queue_.take(TimePoint::max()));
  exchanges_.end(error);
}

}  // namespace ronde
