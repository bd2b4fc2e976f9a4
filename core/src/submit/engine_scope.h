// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

namespace ronde {

/// While one exists, the calling thread runs the engine's loop or a callback: calls there have no
/// certain place in the order of the program's calls.
class EngineScope {
 public:
  EngineScope() noexcept : outer_(std::exchange(is_inside_, true)) {}
  ~EngineScope() { is_inside_ = outer_; }
  EngineScope(const EngineScope&) = delete;
  EngineScope& operator=(const EngineScope&) = delete;

  static bool is_inside() noexcept { return is_inside_; }

 private:
  static inline thread_local bool is_inside_ = false;
  const bool outer_;
};

}  // namespace ronde
