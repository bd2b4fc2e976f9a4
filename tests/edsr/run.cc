// SPDX-License-Identifier: Apache-2.0
#include "run.h"

#include <poll.h>
#include <spawn.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "backends/socket/unique_fd.h"
#include "support.h"

namespace edsr::testing {
namespace {

using ronde::net::UniqueFd;

// Hydra would otherwise kill the survivors of a failing rank before they can say what they saw.
constexpr const char* kKeepSurvivors = "-disable-auto-cleanup ";

std::string launcher(const std::string& options) {
  // One thread a rank: the machine may have fewer cores than ranks.
  return "OMP_NUM_THREADS=1 timeout -k 5 120 " EDSR_LAUNCHER_PROGRAM " " + options;
}

std::string part(int ranks, const std::string& options) {
  return EDSR_LAUNCHER_COUNT " " + std::to_string(ranks) + " " EDSR_PROGRAM " " + options;
}

Outcome run(const std::string& command) {
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot start " + command);
  Outcome outcome;
  std::array<char, 4096> block;
  for (std::size_t got = 0; (got = std::fread(block.data(), 1, block.size(), pipe)) > 0;) {
    outcome.output.append(block.data(), got);
  }
  const int status = ::pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

/// The shell becomes the program, so that the process is the one to kill.
pid_t start_alone(const std::string& options) {
  std::string command = "OMP_NUM_THREADS=1 exec " EDSR_PROGRAM " " + options + " >/dev/null";
  std::string shell = "sh";
  std::string flag = "-c";
  const std::array<char*, 4> words = {shell.data(), flag.data(), command.data(), nullptr};
  pid_t child = 0;
  const int error = ::posix_spawn(&child, "/bin/sh", nullptr, nullptr, words.data(), environ);
  if (error != 0) throw std::system_error(error, std::generic_category(), command);
  return child;
}

UniqueFd checked(int fd, const char* call) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), call);
  return UniqueFd(fd);
}

/// Becomes readable when something appears in `folder`.
UniqueFd watch_folder(const std::filesystem::path& folder) {
  UniqueFd watch = checked(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK), "inotify_init1");
  if (::inotify_add_watch(watch.get(), folder.c_str(), IN_CREATE | IN_MOVED_TO) < 0) {
    throw std::system_error(errno, std::generic_category(), "inotify_add_watch");
  }
  return watch;
}

/// False if the child ends before, or nothing appears for a minute. `watch` is older than the
/// child.
bool await_file(const std::filesystem::path& file, const UniqueFd& watch, pid_t child) {
  constexpr int kMinute = 60'000;
  const UniqueFd process =
      checked(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)), "pidfd_open");
  std::array<pollfd, 2> events = {pollfd{watch.get(), POLLIN, 0}, pollfd{process.get(), POLLIN, 0}};
  while (!std::filesystem::exists(file)) {
    const int ready = ::poll(events.data(), events.size(), kMinute);
    if (ready < 0 && errno != EINTR) {
      throw std::system_error(errno, std::generic_category(), "poll");
    }
    if (ready == 0 || events[1].revents != 0) return std::filesystem::exists(file);
    std::array<char, 4096> names;
    while (::read(watch.get(), names.data(), names.size()) > 0) {
    }
  }
  return true;
}

}  // namespace

void kill_edsr_once_there_is(const std::filesystem::path& file, const std::string& options) {
  std::filesystem::create_directories(file.parent_path());
  const UniqueFd watch = watch_folder(file.parent_path());
  const pid_t child = start_alone(options);
  const bool is_there = await_file(file, watch, child);
  ::kill(child, SIGKILL);
  int status = 0;
  if (::waitpid(child, &status, 0) != child) {
    throw std::system_error(errno, std::generic_category(), "waitpid");
  }
  if (!is_there) throw std::runtime_error("no " + file.string() + " for a minute, or at the end");
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
    throw std::runtime_error("the run ended before it could be killed");
  }
}

Outcome run_edsr(int ranks, const std::string& options, const std::string& launcher_options) {
  return run(launcher(launcher_options + " ") + part(ranks, options));
}

Outcome run_edsr_pair(const std::string& first, const std::string& second) {
  return run(launcher(kKeepSurvivors) + part(1, first) + " : " + part(1, second));
}

std::string quick(const std::filesystem::path& data, const std::filesystem::path& output) {
  return "--data " + data.string() + " --output " + output.string() +
         " --blocks 1 --features 8 --patch 12 --batch 8 --min-side 32 --held-out 2 --lr 1e-3 "
         "--workers 1 ";
}

std::vector<double> loss_curve(const std::filesystem::path& output) {
  std::istringstream lines(read_text(output / "loss.csv"));
  std::string line;
  std::getline(lines, line);
  std::vector<double> losses;
  while (std::getline(lines, line)) {
    losses.push_back(std::strtod(line.substr(line.rfind(',') + 1).c_str(), nullptr));
  }
  return losses;
}

}  // namespace edsr::testing
