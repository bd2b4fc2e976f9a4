// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "ronde/error.h"
#include "ronde/ronde_c.h"

namespace ronde::c {

/// An error that the C interface itself reports.
class Failure : public Error {
 public:
  Failure(ronde_status status, const std::string& text) : Error(text), status_(status) {}

  ronde_status status() const noexcept { return status_; }

 private:
  ronde_status status_;
};

/// Returns the code of the exception that is being handled; its text becomes this thread's last
/// error, after the name of the function that was called.
int report_exception(const char* function) noexcept;

/// Runs the body of a function of the C interface. No exception leaves it.
template <typename Body>
int guarded(const char* function, Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return RONDE_OK;
  } catch (...) {
    return report_exception(function);
  }
}

/// Throws RONDE_E_INVALID_ARGUMENT unless `holds`.
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

/// Throws RONDE_E_USAGE inside a callback: for functions that wait for other ranks.
void expect_no_callback();

// Errors that no call can return.

/// Logs a warning: the operation `name` failed with `error`, and the program did not ask for it.
void log_unheard(std::string_view name, const std::exception_ptr& error) noexcept;
/// Logs an error: `what` happened to a callback of the program, because of `error`.
void log_thrown(std::string_view what, const std::exception_ptr& error) noexcept;

}  // namespace ronde::c
