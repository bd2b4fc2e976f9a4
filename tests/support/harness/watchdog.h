// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <thread>

namespace ronde_test {

/// Ends the process (exit status 124) when one test case takes longer than its deadline, after
/// naming the case and the rank on stderr and printing a backtrace of every thread that answers.
/// One per process: see watchdog().
class Watchdog {
 public:
  /// Starts the deadline of one case, in place of any other.
  void arm(const std::string& test_case, std::chrono::seconds deadline);

  /// Ends the deadline. Returns when no expiry can happen any more.
  void disarm();

 private:
  std::jthread thread_;
};

Watchdog& watchdog();

/// A descriptor of standard error as the program began with it, for what ends the process while a
/// case captures the errors of the product. -1 where it began without one.
int uncaptured_stderr();

/// RONDE_TEST_DEADLINE_S, or 60 s; until RONDE_TEST_ENDS_AT where that is set, in seconds since
/// 1970, and of a helper that another case waits for three seconds less. Throws std::runtime_error
/// on anything but a positive number.
std::chrono::seconds watchdog_deadline(bool is_helper);

}  // namespace ronde_test
