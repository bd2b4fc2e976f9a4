// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

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

/// Work of the library's own: an error that it gets is not one that the program was told of.
using OwnWorkScope = ThreadScope<struct OwnWork>;

}  // namespace ronde
