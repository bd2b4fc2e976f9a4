// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <termios.h>

#include <chrono>
#include <string>

namespace ronde::tool::top {

/// The terminal, while it shows one page after another. The destructor restores it; SIGINT, SIGTERM
/// and SIGHUP end a wait, so that it comes to that.
///
/// Thread-safety: none.
class Screen {
 public:
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  /// Lines and columns beyond the terminal's are left out.
  void show(const std::string& text);

  /// False once the user wants to leave, by the key q or a signal.
  bool wait(std::chrono::milliseconds time);

 private:
  int signals_ = -1;
  bool has_keys_ = false;
  termios before_{};
};

}  // namespace ronde::tool::top
