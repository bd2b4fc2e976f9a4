// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <utility>

namespace ronde::detail {

/// Keeps the first exception of several parts that all run: the other ranks wait for each of them.
///
/// Thread-safety: none.
class FirstError {
 public:
  /// Runs `part`; what it throws is kept if it is the first.
  template <typename Part>
  void attempt(const Part& part) noexcept {
    try {
      part();
    } catch (...) {
      note(std::current_exception());
    }
  }
  void note(std::exception_ptr error) noexcept {
    if (!error_) error_ = std::move(error);
  }

  explicit operator bool() const noexcept { return error_ != nullptr; }
  const std::exception_ptr& get() const noexcept { return error_; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

}  // namespace ronde::detail
