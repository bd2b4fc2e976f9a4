// SPDX-License-Identifier: Apache-2.0
#include "core/src/sets/running_operations.h"

#include <algorithm>
#include <string>
#include <thread>

#include "core/src/group/failure_resolver.h"

namespace ronde {
namespace {

/// How long a thread that waits sees nothing happen before it sleeps.
constexpr std::chrono::microseconds kPatience{50};
/// The same where a peer may need this core.
constexpr std::chrono::microseconds kPatienceWhereCoresAreFew{5};
/// How often the time limits of an operation are checked while its peers let this rank sleep.
constexpr std::chrono::milliseconds kLongestSleepInOperation{100};
/// The same where nobody would wake it: short against the time of a message, once one has taken
/// longer than patience().
constexpr std::chrono::microseconds kPause{50};
/// A thread that yields for longer, so many times in a row, shares its core with programs that
/// compute: ranks that poll yield sooner.
constexpr std::chrono::milliseconds kLongYield{1};
constexpr int kMostLongYields = 3;
/// How long that is then taken to go on.
constexpr std::chrono::milliseconds kCrowdedTime{100};
/// How long operations are polled before messages are checked again.
constexpr std::chrono::microseconds kPollSlice{20};

}  // namespace

void RunningOperations::start(bool has_board, bool outnumbers_cores) {
  has_board_ = has_board;
  patience_ = outnumbers_cores ? kPatienceWhereCoresAreFew : kPatience;
}

bool RunningOperations::busy() const {
  return std::ranges::any_of(sets_.running(), [](const SetEngine* set) { return set->busy(); });
}

std::uint64_t RunningOperations::progress() const {
  std::uint64_t progress = 0;
  for (const SetEngine* set : sets_.running()) progress += set->executor->progress();
  return progress;
}

Waiting RunningOperations::waiting() const {
  Waiting waiting = Waiting::Bell;
  for (const SetEngine* set : sets_.running()) {
    const Waiting way = set->executor->waiting();
    const bool has_bell = has_board_ || !set->busy();
    waiting = std::min(waiting, way == Waiting::Bell && !has_bell ? Waiting::Pause : way);
  }
  return waiting;
}

void RunningOperations::advance() {
  if (!busy()) return;
  const std::uint64_t before = progress();
  const Clock::time_point slice_end = Clock::now() + kPollSlice;
  while (busy()) {
    bool ended = false;
    for (SetEngine* set : sets_.running()) {
      ended = (set->busy() && set->executor->poll()) || ended;
    }
    if (!ended && Clock::now() >= slice_end) break;
  }
  tend();
  if (progress() != before) {
    hot_until_ = Clock::now() + patience_;
  } else if (busy()) {
    // Every rank has entered, so polling is right; but where ranks outnumber cores, a peer may need
    // this one.
    give_way();
  }
}

/// Linux lets a thread that has yielded run last, but one that has slept at once. Where others
/// compute, a sum by MPI that moves on a little at each turn takes minutes by yielding alone.
void RunningOperations::give_way() {
  const Clock::time_point before = Clock::now();
  if (before < crowded_until_) return std::this_thread::sleep_for(kPause);
  std::this_thread::yield();
  const Clock::time_point after = Clock::now();
  long_yields_ = after - before > kLongYield ? long_yields_ + 1 : 0;
  if (long_yields_ >= kMostLongYields) crowded_until_ = after + kCrowdedTime;
}

void RunningOperations::look_again() {
  if (!busy() || waiting() < Waiting::Descriptor) return;
  const std::uint64_t before = progress();
  for (SetEngine* set : sets_.running()) {
    if (set->busy()) set->executor->poll();
  }
  if (progress() != before) hot_until_ = Clock::now() + patience_;
}

std::optional<RunningOperations::Clock::duration> RunningOperations::tend() const {
  const auto host = sets_.global().backends.find(DeviceKind::Cpu);
  return host == sets_.global().backends.end() ? std::nullopt : host->second->tend();
}

std::optional<RunningOperations::Clock::time_point> RunningOperations::next_look(
    Clock::time_point now) const {
  if (!busy()) return std::nullopt;
  const Waiting way = waiting();
  if (way == Waiting::Poll || now < hot_until_) return now;
  return now + (way == Waiting::Pause ? kPause : Clock::duration(kLongestSleepInOperation));
}

std::optional<int> RunningOperations::prepare_sleep() const {
  int descriptor = -1;
  if (!sleep_on_descriptor()) return descriptor;
  for (const SetEngine* set : sets_.running()) {
    if (set->executor->waiting() != Waiting::Descriptor) continue;
    const int of_set = set->backends.at(DeviceKind::Cpu)->prepare_sleep();
    // Two networks have nothing to sleep on together.
    if (of_set < 0 || (descriptor >= 0 && of_set != descriptor)) return std::nullopt;
    descriptor = of_set;
  }
  return descriptor;
}

void RunningOperations::inspect(Clock::time_point now, std::optional<Clock::duration> limit,
                                int rank) const {
  for (const SetEngine* set : sets_.running()) {
    if (!set->busy()) continue;
    const std::string text = set->executor->overdue(now, limit);
    if (!text.empty()) throw GroupFailure{{rank, text, false, false, true}};
  }
}

}  // namespace ronde
