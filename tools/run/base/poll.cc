// SPDX-License-Identifier: Apache-2.0
#include "tools/run/base/poll.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "ronde/error.h"

namespace ronde::tool::launch {
namespace {

/// Opens the terminal of `fd` once more, as non-blocking. A terminal polls as ready if it takes one
/// byte, and a blocking write of more bytes would wait for its reader. To set O_NONBLOCK on `fd`
/// itself would change the shell's terminal, too. None if `fd` is no terminal, or one of another
/// user.
Fd open_terminal(int fd) {
  if (isatty(fd) == 0) return Fd();
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return Fd(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

Clock::duration seconds_of(double count) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(count));
}

std::string text_of(double number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", number);
  return text.data();
}

void fail(const std::string& what) {
  throw Error(what + ": " + std::strerror(errno));
}

std::pair<bool, std::string> read_some(int fd) {
  std::array<char, 65536> buffer;
  const ssize_t count = read(fd, buffer.data(), buffer.size());
  if (count > 0) return {true, std::string(buffer.data(), static_cast<std::size_t>(count))};
  return {count < 0 && (errno == EAGAIN || errno == EINTR), ""};
}

void Poll::add(int fd, short events, Callback callback) {
  entries_.push_back({fd, events, false, std::make_shared<Callback>(std::move(callback))});
}

void Poll::pause(int fd, bool paused) {
  for (Entry& entry : entries_) {
    if (entry.fd == fd) entry.paused = paused;
  }
}

void Poll::remove(int fd) {
  std::erase_if(entries_, [fd](const Entry& entry) { return entry.fd == fd; });
}

void Poll::wait(Clock::time_point deadline) {
  std::vector<pollfd> asked;
  for (const Entry& entry : entries_) {
    if (!entry.paused) asked.push_back({entry.fd, entry.events, 0});
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  const int timeout = static_cast<int>(std::clamp<decltype(left)>(left, 0, INT_MAX));
  const int ready = poll(asked.data(), asked.size(), timeout);
  if (ready < 0 && errno != EINTR) fail("poll");
  if (ready <= 0) return;
  for (const pollfd& answer : asked) {
    if (answer.revents == 0) continue;
    const auto is_it = [&](const Entry& entry) { return entry.fd == answer.fd; };
    const auto entry = std::ranges::find_if(entries_, is_it);
    if (entry == entries_.end() || entry->paused) continue;
    const std::shared_ptr<Callback> callback = entry->callback;
    (*callback)();
  }
}

Outbox::Outbox(Poll& poll, int fd)
    : poll_(poll), own_(open_terminal(fd)), fd_(own_ ? own_.get() : fd) {
  poll_.add(fd_, POLLOUT, [this] { write_some(); });
  poll_.pause(fd_, true);
}

void Outbox::send(std::string_view text) {
  if (broken_) return;
  text_ += text;
  poll_.pause(fd_, text_.empty());
}

void Outbox::close() {
  if (!broken_) poll_.remove(fd_);
  broken_ = true;
  text_.clear();
  sent_ = 0;
}

/// A pipe that is ready takes so much without blocking.
void Outbox::write_some() {
  const ssize_t count =
      write(fd_, text_.data() + sent_, std::min<std::size_t>(pending(), PIPE_BUF));
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count < 0) {
    error_ = errno;
    return close();
  }
  sent_ += static_cast<std::size_t>(count);
  if (sent_ < text_.size() && sent_ < (std::size_t{1} << 20)) return;
  text_.erase(0, sent_);
  sent_ = 0;
  poll_.pause(fd_, text_.empty());
}

Fd open_signals(const std::vector<int>& numbers) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : numbers) {
    struct sigaction action = {};
    const bool is_known = sigaction(number, nullptr, &action) == 0;
    // nohup's, and a shell's for what runs in the background.
    if (is_known && action.sa_handler == SIG_IGN && number != SIGCHLD) continue;
    sigaddset(&set, number);
  }
  std::signal(SIGCHLD, SIG_DFL);
  std::signal(SIGPIPE, SIG_IGN);
  if (sigprocmask(SIG_BLOCK, &set, nullptr) != 0) fail("sigprocmask");
  Fd signals(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) fail("signalfd");
  return signals;
}

std::vector<int> read_signals(const Fd& signals) {
  std::vector<int> numbers;
  signalfd_siginfo info{};
  while (read(signals.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    numbers.push_back(static_cast<int>(info.ssi_signo));
  }
  return numbers;
}

}  // namespace ronde::tool::launch
