// SPDX-License-Identifier: Apache-2.0
#include "ronde/coroutine.h"

#include <algorithm>
#include <vector>

#include "core/src/base/caller.h"
#include "core/src/base/monotonic_clock.h"
#include "core/src/op/work_state.h"
#include "ronde/completion_queue.h"

namespace ronde {

using std::chrono::nanoseconds;

namespace detail {

/// The suspended coroutines of a thread.
struct Suspension::OfThread {
  static const std::shared_ptr<OfThread>& current() {
    thread_local const auto current = std::make_shared<OfThread>();
    return current;
  }

  bool resume_first() {
    const auto first = std::ranges::find_if(waiting, &Suspension::await_ready);
    if (first == waiting.end()) return false;
    const std::coroutine_handle<> coroutine = (*first)->coroutine_;
    waiting.erase(first);  // before it destroys or suspends others
    coroutine.resume();
    return true;
  }

  /// Has the engine delay no operation.
  void ask() {
    for (const Suspension* const each : waiting) each->state_->ask();
  }

  /// May return before any is over.
  void sleep(nanoseconds duration) {
    if (!queue) queue.emplace();
    ask();
    for (Suspension* const each : waiting) {
      if (!std::exchange(each->is_watched_, true)) queue->add(Work(each->state_), 0);
    }
    queue->next(duration);
  }

  std::vector<Suspension*> waiting;  ///< in the order in which they suspended
  std::optional<CompletionQueue> queue;
};

Suspension::~Suspension() {
  if (thread_) std::erase(thread_->waiting, this);
}

bool Suspension::await_ready() const {
  if (!state_) return true;
  state_->expect_own_process("co_await");
  return state_->done();
}

void Suspension::await_suspend(std::coroutine_handle<> coroutine) {
  if (is_loop_thread() || EngineScope::is_inside()) {
    throw UsageError(
        "co_await of a Work in a callback of Ronde: the coroutine would continue on this thread, "
        "which must not wait. Start the coroutine on a thread of the program");
  }
  coroutine_ = coroutine;
  thread_ = OfThread::current();
  thread_->waiting.push_back(this);
}

}  // namespace detail

bool resume_coroutine(nanoseconds duration) {
  detail::Suspension::OfThread& all = *detail::Suspension::OfThread::current();
  if (all.resume_first()) return true;
  if (all.waiting.empty()) return false;
  if (duration <= nanoseconds(0)) return all.ask(), false;
  // The engine runs for the first coroutine, as in Work::wait(), before the thread sleeps until any
  // may continue: sleeping takes longer than a small operation.
  constexpr std::chrono::microseconds kFirstWait{50};
  const auto begin = MonotonicClock::now();
  all.waiting.front()->state_->wait(Stage::Done,
                                    begin + std::min<nanoseconds>(duration, kFirstWait));
  while (!all.resume_first()) {
    const nanoseconds left = duration - (MonotonicClock::now() - begin);
    if (left <= nanoseconds(0)) return false;
    all.sleep(left);
  }
  return true;
}

}  // namespace ronde
