// SPDX-License-Identifier: Apache-2.0
#include "tests/tools/run/run_command.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "tests/support/processes/beside.h"
#include "tests/support/processes/temporary_folder.h"

namespace ronde::test {
namespace {

/// To read from, and to write to.
std::array<int, 2> make_ends(RunCommand::Screen screen) {
  std::array<int, 2> ends{};
  if (screen == RunCommand::Screen::Pipe) {
    REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);
    return ends;
  }
  ends[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(ends[0] >= 0);
  REQUIRE(unlockpt(ends[0]) == 0);
  ends[1] = open(ptsname(ends[0]), O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(ends[1] >= 0);
  return ends;
}

}  // namespace

RunCommand::RunCommand(std::vector<std::string> options, Screen screen) {
  options.insert(options.begin(), {RONDE_COMMAND, "run"});
  std::vector<char*> words;
  for (std::string& word : options) words.push_back(word.data());
  words.push_back(nullptr);
  const std::array<int, 2> ends = make_ends(screen);
  process_ = fork();
  REQUIRE(process_ >= 0);
  if (process_ == 0) {
    dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    execv(words[0], words.data());
    _exit(127);
  }
  close(ends[1]);
  pipe_ = ends[0];
}

RunCommand::~RunCommand() {
  close(pipe_);
  if (process_ < 0) return;
  kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
}

bool RunCommand::read_some() {
  std::array<char, 4096> buffer{};
  const ssize_t count = read(pipe_, buffer.data(), buffer.size());
  if (count > 0) text_.append(buffer.data(), static_cast<std::size_t>(count));
  return count > 0;
}

void RunCommand::wait_for(const std::string& text, std::size_t times) {
  while (numbers_after(text).size() < times) {
    if (read_some()) continue;
    FAIL("it has ended without \"" << text << "\":\n" << text_);
  }
}

void RunCommand::signal(int number) const {
  REQUIRE(kill(process_, number) == 0);
}

int RunCommand::end() {
  while (read_some()) {
  }
  int status = 0;
  REQUIRE(waitpid(std::exchange(process_, -1), &status, 0) > 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int RunCommand::end_unread(int number) {
  constexpr int kPeriod_ms = 20;  // signals that come together are one
  int status = 0;
  while (waitpid(process_, &status, WNOHANG) == 0) {
    signal(number);
    poll(nullptr, 0, kPeriod_ms);
  }
  process_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::vector<pid_t> RunCommand::numbers_after(const std::string& word) const {
  std::vector<pid_t> numbers;
  for (std::size_t at = 0; (at = text_.find(word, at)) != std::string::npos;) {
    at += word.size();
    numbers.push_back(std::atoi(text_.c_str() + at));
  }
  return numbers;
}

void make_program(const std::filesystem::path& path, const std::string& script,
                  const std::string& shell) {
  write_bytes(path, "#!" + shell + "\n" + script + "\n");
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

Watched::Watched(const std::vector<pid_t>& processes) {
  for (const pid_t process : processes) {
    fds_.push_back(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
    REQUIRE(fds_.back() >= 0);
  }
}

Watched::~Watched() {
  for (const int fd : fds_) close(fd);
}

void Watched::wait_for_ends() const {
  for (const int fd : fds_) {
    pollfd entry{fd, POLLIN, 0};
    REQUIRE(poll(&entry, 1, -1) == 1);
  }
}

}  // namespace ronde::test
