// SPDX-License-Identifier: Apache-2.0
// Who runs the loop, and when it sleeps: Note [Who runs the loop] in coordinator.h.
#include <algorithm>
#include <thread>

#include "coordinator.h"
#include "exception_text.h"

namespace ronde {
namespace {

/// How long a caller that waits looks on without anything happening before it blocks.
constexpr std::chrono::microseconds kPatience{50};

/// Gives a lock up for a scope.
class Unlocked {
 public:
  explicit Unlocked(std::unique_lock<std::mutex>& lock) : lock_(lock) { lock_.unlock(); }
  ~Unlocked() { lock_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  std::unique_lock<std::mutex>& lock_;
};

}  // namespace

void Coordinator::live() noexcept {
  std::unique_lock engine(engine_);
  is_live_ = true;
  try {
    do {
      sleep(engine);
    } while (cycle());
    is_live_ = false;
    stop();
  } catch (const GroupFailure& seen) {
    is_live_ = false;
    die(settle(seen));
  } catch (...) {
    is_live_ = false;
    const int rank = topology_.rank;
    die(settle({{rank, "rank " + std::to_string(rank) + " failed: " + exception_text(), false}}));
  }
}

void Coordinator::sleep(std::unique_lock<std::mutex>& engine) {
  // First said, then looked: whoever adds something afterwards wakes this thread.
  asleep_.store(true);
  const Clock::time_point until = next_event();
  if (until > Clock::now()) {
    counters_.sleeps.add();
    waits_.store(true);
    driver_.store({});
    const Unlocked unlocked(engine);
    transport_->wait(until);
    waits_.store(false);
  }
  driver_.store(std::this_thread::get_id());
  asleep_.store(false);
}

void Coordinator::help(const WorkState& work, TimePoint deadline) noexcept {
  queue_->flush();
  // A callback that waits finds the loop in use by its own thread.
  if (driver_.load() != std::this_thread::get_id()) {
    const std::unique_lock engine(engine_, std::try_to_lock);
    if (engine) drive(work, deadline);
  }
  if (!work.done()) queue_->wake();
}

void Coordinator::drive(const WorkState& work, TimePoint deadline) {
  counters_.driven_by_callers.add();
  driver_.store(std::this_thread::get_id());
  try {
    std::uint64_t seen = progress();
    TimePoint give_up = Clock::now() + kPatience;
    while (is_live_ && !driver_failure_ && !work.done()) {
      if (!cycle()) break;
      const TimePoint now = Clock::now();
      const std::uint64_t reached = progress();
      if (reached != seen) give_up = now + kPatience;
      seen = reached;
      if (now >= std::min(give_up, deadline)) break;
      if (outnumbers_cores_) std::this_thread::yield();
    }
  } catch (...) {
    driver_failure_ = std::current_exception();
  }
  driver_.store({});
}

/// Changes whenever something happens.
std::uint64_t Coordinator::progress() const {
  return counters_.messages.get() + counters_.decisions.get() + executor_->progress();
}

}  // namespace ronde
