// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "ronde/work.h"

namespace ronde {

/// Tells which of many operations are done, to threads that wait for any of them or poll a
/// descriptor. No code of the program's runs on Ronde's thread for it:
///
///     ronde::CompletionQueue queue;
///     queue.add(ronde::submit(request), 7);
///     while (const auto token = queue.next(std::chrono::seconds(1))) use(*token);
///
/// The works may be of several Runtimes, and outlive the queue, as it may outlive those. In a child
/// of fork() add() and next() throw UsageError.
///
/// Thread-safety: every member may be called from any thread, but construction and destruction.
class CompletionQueue {
 public:
  /// Throws Error if there is no descriptor for it.
  CompletionQueue();
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  /// Has next() return `token` once `work` is done, also where it failed: Work::error() says so.
  /// Hurries no operation: those that are gathered begin after RONDE_CYCLE_TIME_MS, unless a thread
  /// waits for one; Work::wait_for(0) does it as well.
  void add(const Work& work, std::uint64_t token);

  /// Returns a function that has next() return `token`, the first time that it is called: for other
  /// events of the program, such as the end of a thread that calls next(). Any thread may call it,
  /// also after the destruction of the queue. It needs no memory, and neither blocks nor throws.
  std::function<void()> notifier(std::uint64_t token);

  /// Removes and returns the token that has been here longest, once there is one. Nothing if none
  /// came within `duration` (nanoseconds::max(): for ever), or a signal handler ran on this thread.
  std::optional<std::uint64_t> next(std::chrono::nanoseconds duration);

  /// Returns a descriptor that is readable while there are tokens, for poll(), select() and epoll.
  /// It is the queue's: neither to be read nor closed.
  int descriptor() const noexcept;

 private:
  class State;
  const std::shared_ptr<State> state_;
};

}  // namespace ronde
