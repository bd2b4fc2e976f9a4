// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

namespace ronde {

/// A function with a stack of its own, which a thread runs in turn with other work.
///
/// Thread-safety: none; one thread calls all members of all fibers.
class Fiber {
 public:
  /// `function` is run by resume(), and must not throw. Throws Error where there is no memory for
  /// its stack.
  explicit Fiber(std::function<void()> function);
  /// The function has not begun, or has returned.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs the function until it calls suspend() or returns.
  void resume();
  /// To be called in the function: returns at the next resume().
  void suspend();
  bool has_returned() const noexcept;

 private:
  class Context;
  const std::unique_ptr<Context> context_;
};

}  // namespace ronde
