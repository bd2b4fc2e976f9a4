// SPDX-License-Identifier: Apache-2.0
#include "run.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "support.h"

namespace edsr::testing {
namespace {

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

/// False if the child ends before, or after a minute.
bool await_file(const std::filesystem::path& file, pid_t child) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (std::chrono::steady_clock::now() < deadline) {
    if (std::filesystem::exists(file)) return true;
    siginfo_t end = {};
    // WNOWAIT: it is collected later, and until then its pid is nobody else's.
    if (::waitid(P_PID, static_cast<id_t>(child), &end, WEXITED | WNOHANG | WNOWAIT) != 0) {
      throw std::system_error(errno, std::generic_category(), "waitid");
    }
    if (end.si_pid == child) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

}  // namespace

void kill_edsr_once_there_is(const std::filesystem::path& file, const std::string& options) {
  const pid_t child = start_alone(options);
  const bool is_there = await_file(file, child);
  ::kill(child, SIGKILL);
  int status = 0;
  if (::waitpid(child, &status, 0) != child) {
    throw std::system_error(errno, std::generic_category(), "waitpid");
  }
  if (!is_there) throw std::runtime_error("no " + file.string() + " after a minute, or at the end");
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
