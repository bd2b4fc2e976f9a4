// SPDX-License-Identifier: Apache-2.0
#include "tools/top/screen.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <iostream>
#include <sstream>
#include <string_view>

namespace ronde::tool::top {
namespace {

// ECMA-48 and xterm.
constexpr std::string_view kOpen = "\x1b[?1049h\x1b[?25l";   // another page, without the cursor
constexpr std::string_view kClose = "\x1b[?25h\x1b[?1049l";  // what was there before
constexpr std::string_view kHome = "\x1b[H";
constexpr std::string_view kEndOfLine = "\x1b[K\r\n";
constexpr std::string_view kClearBelow = "\x1b[J";

sigset_t ending_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  return signals;
}

}  // namespace

Screen::Screen() : has_keys_(tcgetattr(STDIN_FILENO, &before_) == 0) {
  const sigset_t signals = ending_signals();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signals_ = signalfd(-1, &signals, SFD_CLOEXEC);
  if (has_keys_) {
    termios keys = before_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    keys.c_cc[VSUSP] = _POSIX_VDISABLE;  // a stopped process would leave the terminal as it is
    tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  }
  std::cout << kOpen << std::flush;
}

Screen::~Screen() {
  std::cout << kClose << std::flush;
  if (has_keys_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  close(signals_);
}

void Screen::show(const std::string& text) {
  winsize size{};
  const bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1;
  const std::size_t rows = is_known ? size.ws_row : 24;
  const std::size_t columns = is_known ? size.ws_col : 80;
  std::cout << kHome;
  std::istringstream lines(text);
  std::string line;
  for (std::size_t row = 1; row < rows && std::getline(lines, line); ++row) {
    std::cout << line.substr(0, columns) << kEndOfLine;
  }
  std::cout << kClearBelow << std::flush;
}

bool Screen::wait(std::chrono::milliseconds time) {
  std::array<pollfd, 2> sources = {
      {{signals_, POLLIN, 0}, {has_keys_ ? STDIN_FILENO : -1, POLLIN, 0}}};
  if (poll(sources.data(), sources.size(), static_cast<int>(time.count())) <= 0) return true;
  if (sources[0].revents != 0) return false;
  char key = 'q';  // a terminal that is gone
  return read(STDIN_FILENO, &key, 1) == 1 && key != 'q';
}

}  // namespace ronde::tool::top
