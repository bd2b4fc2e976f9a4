// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "ronde/error.h"

// What a call may do depends on who makes it: a child of fork(), the thread of the loop, a
// callback.
//
// Note [After fork]
// A child of fork() has a copy of the Runtime, but not its thread. Whatever it sends over the
// copied sockets, or writes to shared memory, would count as its parent's. So in a child every call
// is refused, before it takes a lock that a thread of the parent may have held at the fork; only
// shutdown() and leave() do nothing, and the Runtime is not joined, closed or freed. The program's
// own calls reach shared memory as well, through gradients that live there. So a child has private
// pages in place of this rank's part of the symmetric heap, and none in place of other shared
// memory (SharedMapping). Hooks of gradients do nothing there.
namespace ronde {

/// Returns the number of forks between this process and the one that called this first. Objects
/// made at another depth belong to a parent. It is one function in all libraries of Ronde.
[[gnu::visibility("default")]] inline int fork_depth() {
  static std::atomic<int> depth{0};
  static const int kError =
      ::pthread_atfork(nullptr, nullptr, [] { depth.fetch_add(1, std::memory_order_relaxed); });
  if (kError == 0) return depth.load(std::memory_order_relaxed);
  throw Error("pthread_atfork() failed: " + std::generic_category().message(kError));
}

/// Returns the error of a call of `what` ("ronde::rank()") in a child.
inline UsageError error_after_fork(const std::string& what) {
  return UsageError(what +
                    " was called in a child of fork(): the group is that of its parent, which goes "
                    "on. A child that needs Ronde is forked before ronde::init(), or calls exec()");
}

/// While one exists, the calling thread is inside the code that `Tag` stands for.
template <typename Tag>
class ThreadScope {
 public:
  ThreadScope() noexcept : outer_(std::exchange(is_inside_, true)) {}
  ~ThreadScope() { is_inside_ = outer_; }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

  static bool is_inside() noexcept { return is_inside_; }
  /// For fibers, which share a thread.
  static void swap(bool& is_inside) noexcept { std::swap(is_inside_, is_inside); }

 private:
  static inline thread_local bool is_inside_ = false;
  const bool outer_;
};

inline thread_local bool this_thread_ends = false;  // readable after the thread's destructors

struct LivingThread {
  const std::shared_ptr<const char> token = std::make_shared<const char>();
  ~LivingThread() { this_thread_ends = true; }
};

/// Returns whether the calling thread is `owner`; makes it the owner if the previous one has ended.
inline bool is_this_thread(std::weak_ptr<const void>& owner) {
  if (this_thread_ends) return owner.expired();
  thread_local const LivingThread thread;
  const bool is_owner = !owner.owner_before(thread.token) && !thread.token.owner_before(owner);
  if (is_owner || !owner.expired()) return is_owner;
  owner = thread.token;
  return true;
}

/// Ronde's own work: the program has not seen the errors that occur in it.
using OwnWorkScope = ThreadScope<struct OwnWork>;

/// The engine's loop, or a callback: calls there have no certain place in the order of the
/// program's calls.
using EngineScope = ThreadScope<struct EngineLoop>;

/// The thread of a Runtime, which runs callbacks of the program: it must not wait for operations.
using LoopThreadScope = ThreadScope<struct LoopThread>;
inline bool is_loop_thread() noexcept {
  return LoopThreadScope::is_inside();
}

/// Returns the error of a call of shutdown() on that thread.
inline UsageError error_of_shutdown_in_callback() {
  return UsageError(
      "shutdown() was called in a callback of an operation, which it would wait for: call it where "
      "the program ends");
}

}  // namespace ronde
