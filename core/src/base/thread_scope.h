// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "ronde/error.h"

namespace ronde {

/// While one exists, the calling thread is inside what `Tag` stands for.
template <typename Tag>
class ThreadScope {
 public:
  ThreadScope() noexcept : outer_(std::exchange(is_inside_, true)) {}
  ~ThreadScope() { is_inside_ = outer_; }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

  static bool is_inside() noexcept { return is_inside_; }

 private:
  static inline thread_local bool is_inside_ = false;
  const bool outer_;
};

inline thread_local bool this_thread_ends = false;  // can be asked after the thread's destructors

struct LivingThread {
  const std::shared_ptr<const char> token = std::make_shared<const char>();
  ~LivingThread() { this_thread_ends = true; }
};

/// The calling thread is `owner`; it becomes the owner if the one there was has ended.
inline bool is_this_thread(std::weak_ptr<const void>& owner) {
  if (this_thread_ends) return owner.expired();
  thread_local const LivingThread thread;
  const bool is_owner = !owner.owner_before(thread.token) && !thread.token.owner_before(owner);
  if (is_owner || !owner.expired()) return is_owner;
  owner = thread.token;
  return true;
}

/// Work of the library's own: an error that it gets is not one that the program was told of.
using OwnWorkScope = ThreadScope<struct OwnWork>;

/// The engine's loop, or a callback: calls there have no certain place in the order of the
/// program's calls.
using EngineScope = ThreadScope<struct EngineLoop>;

/// Whether this thread is the one of a Runtime, which calls the program back: it must not wait for
/// operations.
bool is_loop_thread() noexcept;

/// Called at its start.
void note_loop_thread() noexcept;

/// shutdown() was called on it.
UsageError error_of_shutdown_in_callback();

}  // namespace ronde
