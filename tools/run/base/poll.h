// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ronde::tool::launch {

using Clock = std::chrono::steady_clock;

Clock::duration seconds_of(double count);
/// "0.5".
std::string text_of(double number);

/// Owns a file descriptor; -1 is none.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  void reset() noexcept {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

/// Throws Error with `what` and the text of errno.
[[noreturn]] void fail(const std::string& what);

/// Reads without blocking: false at the end of the input, an empty text if there is nothing yet.
std::pair<bool, std::string> read_some(int fd);

/// Calls back for descriptors that are ready.
///
/// Thread-safety: none.
class Poll {
 public:
  using Callback = std::function<void()>;

  /// `events` as for poll(). The callback is also called at the end or an error of `fd`.
  void add(int fd, short events, Callback callback);
  /// Ignores the descriptor while it is paused.
  void pause(int fd, bool paused);
  void remove(int fd);

  /// Waits until one is ready, or `deadline`, and calls back. A signal ends the wait.
  void wait(Clock::time_point deadline);

 private:
  struct Entry {
    int fd;
    short events;
    bool paused;
    std::shared_ptr<Callback> callback;  // which may remove itself
  };
  std::vector<Entry> entries_;
};

/// Buffers bytes for a descriptor and never blocks on it.
///
/// Thread-safety: none.
class Outbox {
 public:
  /// `poll` outlives this; `fd` does until close().
  Outbox(Poll& poll, int fd);
  ~Outbox() { close(); }
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  void send(std::string_view text);
  std::size_t pending() const noexcept { return text_.size() - sent_; }
  /// Whether its reader is gone.
  bool is_broken() const noexcept { return broken_; }
  /// The errno of the write that failed; 0 if none has.
  int error() const noexcept { return error_; }
  /// Discards what has not been sent, and all later text.
  void close();

 private:
  void write_some();

  Poll& poll_;
  const Fd own_;  ///< of a terminal
  const int fd_;
  std::string text_;
  std::size_t sent_ = 0;
  bool broken_ = false;
  int error_ = 0;
};

/// Blocks the signals, to be read instead of being caught.
Fd open_signals(const std::vector<int>& numbers);
/// Returns the signals that have arrived.
std::vector<int> read_signals(const Fd& signals);

}  // namespace ronde::tool::launch
