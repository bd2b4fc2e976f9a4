// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "ronde/error.h"
#include "ronde/ronde_c.h"

namespace ronde::c {

/// An error that the C interface itself finds.
class Failure : public Error {
 public:
  Failure(ronde_status status, const std::string& text) : Error(text), status_(status) {}

  ronde_status status() const noexcept { return status_; }

 private:
  ronde_status status_;
};

/// The code of the exception that is being handled; its text becomes this thread's last error.
/// `function` was called.
int report_exception(const char* function) noexcept;

/// Runs the body of a function of the C interface: nothing it throws gets out.
template <typename Body>
int guarded(const char* function, Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return RONDE_OK;
  } catch (...) {
    return report_exception(function);
  }
}

/// RONDE_E_INVALID_ARGUMENT unless `holds`.
inline void expect(bool holds, const char* text) {
  if (!holds) throw Failure(RONDE_E_INVALID_ARGUMENT, text);
}

/// While one lives, this thread is inside a callback of the program, which must not block.
class CallbackScope {
 public:
  CallbackScope() noexcept { ++depth_; }
  ~CallbackScope() { --depth_; }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;

  static bool is_open() noexcept { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
};

/// For functions that wait for other ranks: RONDE_E_USAGE inside a callback.
void expect_no_callback();

}  // namespace ronde::c
