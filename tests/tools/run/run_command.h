// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace ronde::test {

/// `ronde run` with both of its streams in one pipe, or one terminal.
///
/// Thread-safety: none.
class RunCommand {
 public:
  enum class Screen { Pipe, Terminal };
  explicit RunCommand(std::vector<std::string> options, Screen screen = Screen::Pipe);
  /// Kills it if it has not ended.
  ~RunCommand();
  RunCommand(const RunCommand&) = delete;
  RunCommand& operator=(const RunCommand&) = delete;

  /// Reads until it has written `text` so many times. Fails the test if it ends before.
  void wait_for(const std::string& text, std::size_t times = 1);
  void signal(int number) const;
  /// Reads to its end, and returns its exit code.
  int end();
  /// Sends it the signal, until it has ended, without reading. Returns its exit code.
  int end_unread(int number);
  /// All that it has written so far.
  const std::string& text() const { return text_; }
  /// The numbers that follow `word` in the text.
  std::vector<pid_t> numbers_after(const std::string& word) const;

 private:
  bool read_some();

  pid_t process_ = -1;
  int pipe_ = -1;
  std::string text_;
};

/// An executable file, which sh runs unless `shell` is another one.
void make_program(const std::filesystem::path& path, const std::string& script,
                  const std::string& shell = "/bin/sh");

/// Processes that are watched from their life on.
class Watched {
 public:
  explicit Watched(const std::vector<pid_t>& processes);
  ~Watched();
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  /// Returns once they are gone; the test's deadline ends one that waits for ever.
  void wait_for_ends() const;

 private:
  std::vector<int> fds_;
};

}  // namespace ronde::test
