// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/issuing_thread.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace ronde::nccl {

bool Task::poll() {
  if (!has_run_.load(std::memory_order_acquire)) return false;
  if (error_) std::rethrow_exception(error_);
  return true;
}

struct IssuingThread::State {
  struct Entry {
    Kind kind;
    std::function<void()> run;
    std::shared_ptr<Task> task;
  };

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stops || !queue.empty(); });
      if (stops) return;
      Entry entry = std::move(queue.front());
      queue.pop_front();
      running = entry.kind;
      lock.unlock();
      run(entry);
      lock.lock();
      running.reset();
      changed.notify_all();
    }
  }

  /// The task's captures are destroyed, and its exception is stored, before the poller sees the
  /// end.
  static void run(Entry& entry) {
    std::exception_ptr error;
    try {
      entry.run();
    } catch (...) {
      error = std::current_exception();
    }
    entry.run = nullptr;
    entry.task->error_ = std::move(error);
    entry.task->has_run_.store(true, std::memory_order_release);
  }

  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by mutex.
  std::deque<Entry> queue;
  std::optional<Kind> running;
  bool stops = false;
};

IssuingThread::IssuingThread()
    : state_(std::make_shared<State>()), thread_([state = state_] { state->serve(); }) {}

IssuingThread::~IssuingThread() {
  stop();
  bool is_busy = false;
  {
    const std::lock_guard lock(state_->mutex);
    is_busy = state_->running.has_value();
  }
  if (is_busy) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

std::shared_ptr<Task> IssuingThread::submit(Kind kind, std::function<void()> run) {
  auto task = std::make_shared<Task>();
  const std::lock_guard lock(state_->mutex);
  if (state_->stops) return task;
  state_->queue.push_back({kind, std::move(run), task});
  state_->changed.notify_all();
  return task;
}

void IssuingThread::stop() noexcept {
  std::deque<State::Entry> dropped;  // destroyed without the lock
  const std::lock_guard lock(state_->mutex);
  state_->stops = true;
  dropped.swap(state_->queue);
  state_->changed.notify_all();
}

bool IssuingThread::has_stopped(Clock::time_point deadline) const noexcept {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_until(lock, deadline, [&] { return state_->running != Kind::Work; });
}

}  // namespace ronde::nccl
