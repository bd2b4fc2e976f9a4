// SPDX-License-Identifier: Apache-2.0
// The loop's own thread runs rounds and sleeps between them. A caller that waits takes the loop
// over while that thread sleeps, runs rounds as long as something happens, and wakes the thread if
// it leaves something to do: Note [Who runs the loop].
#include "core/src/loop/loop.h"

#include <algorithm>
#include <string>

#include "core/src/base/caller.h"
#include "core/src/base/monotonic_clock.h"

namespace ronde {
namespace {

/// How long a waiting thread polls without progress before it sleeps.
constexpr std::chrono::microseconds kPatience{50};
/// How long it polls where a peer may need this core.
constexpr std::chrono::microseconds kPatienceWhereCoresAreFew{5};
/// How long operations are polled before messages are checked again.
constexpr std::chrono::microseconds kPollSlice{20};
/// While a schedule is frozen, a caller that waits polls for messages in one of this many rounds.
constexpr unsigned kRoundsWithoutMessages = 16;
/// Events of which a caller makes figures in a round without progress: this takes less time than a
/// signal from another core.
constexpr std::uint64_t kEventsOfRound = 2;
/// How often the time limits of an operation are checked while its peers let this rank sleep.
constexpr std::chrono::milliseconds kLongestSleepInOperation{100};
/// How long a rank sleeps in an operation that does not wake it: short against the time of a
/// message, once one has taken longer than the patience.
constexpr std::chrono::microseconds kPause{50};
/// Practically infinite, but safe in arithmetic.
constexpr std::chrono::hours kLongestSleep{24};
/// A thread whose yield takes longer this many times in a row shares its core with programs that
/// compute, as ranks that poll give the core back sooner.
constexpr std::chrono::milliseconds kLongYield{1};
constexpr int kMostLongYields = 3;
/// How long this is then assumed to last.
constexpr std::chrono::milliseconds kCrowdedTime{100};

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

void Loop::start(Board* board, bool outnumbers_cores) {
  board_ = board;
  outnumbers_cores_ = outnumbers_cores;
  patience_ = outnumbers_cores ? kPatienceWhereCoresAreFew : kPatience;
}

bool Loop::step(TimePoint now) {
  counters_.cycles.add();
  control_.receive(now);
  control_.collect(now);
  control_.agree(now);
  now = MonotonicClock::now();  // the slice of the operations begins
  poll_operations(now);
  control_.report_ends(busy());
  expect_none_overdue(now);
  control_.inspect(now);
  return !control_.has_ended();
}

void Loop::run(std::unique_lock<std::mutex>& engine) {
  runs_ = true;
  try {
    do {
      sleep(engine);
      if (failure_) std::rethrow_exception(failure_);
    } while (step(MonotonicClock::now()));
  } catch (...) {
    runs_ = false;
    throw;
  }
  runs_ = false;
}

void Loop::sleep(std::unique_lock<std::mutex>& engine) {
  const auto progress_due = failure_ ? std::nullopt : progress_host_backend();
  // Published before the last poll: whoever adds something afterwards wakes this thread.
  asleep_.store(true);
  publish_sleep();
  poll_again();
  const TimePoint now = MonotonicClock::now();
  sleeps_until_ = failure_ ? TimePoint() : next_event(now);
  if (progress_due) sleeps_until_ = std::min(sleeps_until_, now + *progress_due);
  if (sleeps_until_ > now) {
    if (const std::optional<int> descriptor = prepare_sleep()) {
      counters_.sleeps.add();
      driver_.store({});
      const Unlocked unlocked(engine);
      waits_.store(true);  // with the engine unlocked
      queue_.events().read_figures();
      tree_.transport().wait(sleeps_until_, *descriptor);
      waits_.store(false);
    }
  }
  driver_.store(std::this_thread::get_id());
  if (board_ != nullptr) board_->set_asleep(Board::Sleep::None);
  asleep_.store(false);
}

void Loop::publish_sleep() {
  if (board_ == nullptr) return;
  const FrozenSchedule* const schedule = control_.schedule();
  const bool waiting = busy() || (schedule != nullptr && schedule->is_expedited());
  board_->set_asleep(waiting ? Board::Sleep::Waiting : Board::Sleep::Idle);
}

void Loop::help(WorkState& work, Stage goal, TimePoint deadline) noexcept {
  if (deadline == WaitHelper::kAsks) {
    if (queue_.expedite(work, false)) queue_.wake();
    return;
  }
  EventLog& events = queue_.events();
  const auto record = [&](EventKind kind, TimePoint time) {
    events.write({.time_ns = EventLog::ns_of(time), .kind = kind, .operation = work.number()});
  };
  const bool waits_from_the_start = work.pop_first_wait();
  const bool has_to_wait = work.stage() < goal;
  if (has_to_wait) {
    const TimePoint now = MonotonicClock::now();
    if (!waits_from_the_start) record(EventKind::WaitBegun, now);
    queue_.expedite(work, true);
    if (!drive(work, goal, now, deadline)) queue_.wake();
    work.block(goal, deadline);
  }
  if (events.enabled() && (has_to_wait || waits_from_the_start)) {
    record(EventKind::WaitEnded, MonotonicClock::now());
  }
  queue_.record_wait();
}

/// Runs the loop while there is progress. Returns false if another thread runs it.
bool Loop::drive(const WorkState& work, Stage goal, TimePoint now, TimePoint deadline) {
  // A callback that waits finds the loop in use by its own thread. Of a simulation no thread waits.
  if (is_this_thread() || MonotonicClock::is_simulated()) return false;
  const std::unique_lock engine(engine_, std::try_to_lock);
  if (!engine || !runs_) return false;
  const EngineScope scope;
  counters_.driven_by_callers.add();
  driver_.store(std::this_thread::get_id());
  if (board_ != nullptr) board_->set_asleep(Board::Sleep::None);
  try {
    run_rounds(work, goal, now, deadline);
    // Published before the last poll, as in sleep().
    publish_sleep();
    poll_again();
  } catch (...) {
    failure_ = std::current_exception();
  }
  // The thread may sleep without the descriptor, or the polls here may have consumed its signal.
  const bool misses_wakes = sleeps_on_descriptor();
  if (failure_ || misses_wakes || next_event(MonotonicClock::now()) < sleeps_until_) queue_.wake();
  driver_.store({});
  return true;
}

void Loop::run_rounds(const WorkState& work, Stage goal, TimePoint now, TimePoint deadline) {
  std::uint64_t seen = progress();
  TimePoint give_up = now + patience_;
  for (unsigned round = 0; !failure_ && work.stage() < goal; ++round) {
    // Polling for messages costs a system call; a frozen schedule needs none.
    const bool polls_messages =
        !control_.is_frozen() || round % kRoundsWithoutMessages == kRoundsWithoutMessages - 1;
    if (!polls_messages) {
      control_.follow_schedule();
      poll_operations(now);
    } else if (!step(now)) {
      return;
    }
    if (work.stage() >= goal) return;
    now = MonotonicClock::now();
    const std::uint64_t reached = progress();
    if (reached != seen) {
      give_up = now + patience_;
    } else {
      queue_.events().read_figures(kEventsOfRound);
    }
    seen = reached;
    if (now >= std::min(give_up, deadline)) return;
    if (!outnumbers_cores_) continue;
    std::this_thread::yield();
    now = MonotonicClock::now();
  }
}

/// Returns a number that changes with every message, decision and step of an operation.
std::uint64_t Loop::progress() const {
  return counters_.messages.get() + counters_.decisions.get() + progress_of_operations();
}

bool Loop::busy() const {
  return std::ranges::any_of(sets_.running(), [](const SetEngine* set) { return set->busy(); });
}

std::uint64_t Loop::progress_of_operations() const {
  std::uint64_t progress = 0;
  for (const SetEngine* set : sets_.running()) progress += set->executor->progress();
  return progress;
}

/// Returns the most impatient way of waiting among the operations in progress.
Waiting Loop::waiting() const {
  Waiting waiting = Waiting::Bell;
  for (const SetEngine* set : sets_.running()) {
    const Waiting way = set->executor->waiting();
    const bool has_bell = board_ != nullptr || !set->busy();
    waiting = std::min(waiting, way == Waiting::Bell && !has_bell ? Waiting::Pause : way);
  }
  return waiting;
}

/// Polls operations until a slice of time passes without the end of one, or all have ended.
void Loop::poll_operations(TimePoint now) {
  if (!busy()) return;
  const std::uint64_t before = progress_of_operations();
  const TimePoint slice_end = now + kPollSlice;
  while (busy()) {
    bool has_ended = false;
    for (SetEngine* set : sets_.running()) {
      has_ended = (set->busy() && set->executor->poll()) || has_ended;
    }
    if (has_ended) continue;
    now = MonotonicClock::now();
    if (now >= slice_end) break;
    MonotonicClock::pass(slice_end);
  }
  progress_host_backend();
  if (progress_of_operations() != before) {
    hot_until_ = MonotonicClock::now() + patience_;
  } else if (busy()) {
    // All ranks run the operation, so polling is right; but where ranks outnumber cores, a peer may
    // need this core.
    yield_core();
  }
}

/// Yields, or sleeps where others compute on this core: Linux runs a thread that has yielded last,
/// but one that has slept at once. A sum by MPI, which progresses a little at each turn, would take
/// minutes by yielding alone.
void Loop::yield_core() {
  if (MonotonicClock::is_simulated()) return;  // each rank has a core; this thread runs them all
  const TimePoint before = MonotonicClock::now();
  if (before < crowded_until_) return std::this_thread::sleep_for(kPause);
  std::this_thread::yield();
  const TimePoint after = MonotonicClock::now();
  long_yields_ = after - before > kLongYield ? long_yields_ + 1 : 0;
  if (long_yields_ >= kMostLongYields) crowded_until_ = after + kCrowdedTime;
}

/// Polls operations that may sleep once more, after this rank has announced its sleep; they are hot
/// again if they made progress.
void Loop::poll_again() {
  if (!busy() || waiting() < Waiting::Descriptor) return;
  const std::uint64_t before = progress_of_operations();
  for (SetEngine* set : sets_.running()) {
    if (set->busy()) set->executor->poll();
  }
  if (progress_of_operations() != before) hot_until_ = MonotonicClock::now() + patience_;
}

/// Calls Backend::tend(), also while other operations are in progress, as peers may wait for it.
std::optional<Duration> Loop::progress_host_backend() const {
  const auto host = sets_.global().backends.find(DeviceKind::Cpu);
  return host == sets_.global().backends.end() ? std::nullopt : host->second->tend();
}

/// Returns the time of the next round if nothing wakes the loop; `now`: at once.
TimePoint Loop::next_event(TimePoint now) const {
  const bool is_busy = busy();  // the last operation may have ended in the poll before a sleep
  TimePoint next = now + kLongestSleep;
  if (is_busy) {
    const Waiting way = waiting();
    if (way == Waiting::Poll || now < hot_until_) return now;
    next = now + (way == Waiting::Pause ? kPause : Duration(kLongestSleepInOperation));
  }
  return std::min(next, control_.next_event(now, is_busy).value_or(next));
}

/// Returns a descriptor for Transport::wait(), or -1; nothing if operations can be polled now.
std::optional<int> Loop::prepare_sleep() const {
  int descriptor = -1;
  if (!sleeps_on_descriptor()) return descriptor;
  for (const SetEngine* set : sets_.running()) {
    if (set->executor->waiting() != Waiting::Descriptor) continue;
    const int of_set = set->backends.at(DeviceKind::Cpu)->prepare_sleep();
    // No single descriptor covers two networks.
    if (of_set < 0 || (descriptor >= 0 && of_set != descriptor)) return std::nullopt;
    descriptor = of_set;
  }
  return descriptor;
}

/// Throws GroupFailure for an operation that takes longer than its timeout, or than
/// RONDE_STALL_ABORT_S.
void Loop::expect_none_overdue(TimePoint now) const {
  const std::optional<Duration> limit = control_.stall_limit().get();
  for (const SetEngine* set : sets_.running()) {
    if (!set->busy()) continue;
    const std::string text = set->executor->overdue(now, limit);
    if (!text.empty()) throw GroupFailure{{tree_.rank(), text, false, false, true}};
  }
}

}  // namespace ronde
