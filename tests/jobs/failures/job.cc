// SPDX-License-Identifier: Apache-2.0
#include "tests/jobs/failures/job.h"

#include <sys/types.h>

#include <csignal>
#include <fstream>
#include <future>
#include <iostream>
#include <set>
#include <sstream>
#include <thread>

#include "tests/support/processes/beside.h"
#include "tests/support/processes/command.h"
#include "tests/support/processes/temporary_folder.h"

namespace ronde::test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// How often files are looked at; nothing depends on it but how soon a test ends.
constexpr std::chrono::milliseconds kLookPeriod{20};
// How long the system may take to clear away what a dead process held.
constexpr std::chrono::seconds kClearingTime{5};

/// By this variable a process is known to belong to the job.
constexpr const char* kJobVariable = "RONDE_TEST_JOB";

/// Of a file that may be gone by now.
std::string contents_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

template <typename Visit>
void for_each_process(Visit visit) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (is_number(name)) visit(static_cast<pid_t>(std::stol(name)));
  }
}

std::vector<pid_t> processes_of(const fs::path& folder) {
  const std::string mark = std::string(kJobVariable) + "=" + folder.string() + '\0';
  std::vector<pid_t> found;
  for_each_process([&](pid_t process) {
    const std::string environment = contents_of("/proc/" + std::to_string(process) + "/environ");
    if (environment.find(mark) != std::string::npos) found.push_back(process);
  });
  return found;
}

/// A folder there is of another program.
std::set<std::string> shared_memory() {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/dev/shm", error)) {
    if (entry.is_regular_file(error)) names.insert(entry.path().string());
  }
  return names;
}

bool is_mapped(const std::string& path) {
  bool mapped = false;
  for_each_process([&](pid_t process) {
    const std::string maps = contents_of("/proc/" + std::to_string(process) + "/maps");
    mapped = mapped || maps.find(path) != std::string::npos;
  });
  return mapped;
}

/// Other tests run at the same time: what they use is mapped, or soon will be.
std::vector<std::string> leaked_memory(const std::set<std::string>& before) {
  const auto deadline = Clock::now() + kClearingTime;
  for (;;) {
    std::vector<std::string> leaked;
    for (const std::string& path : shared_memory()) {
      if (!before.contains(path) && !is_mapped(path)) leaked.push_back(path);
    }
    if (leaked.empty() || Clock::now() >= deadline) return leaked;
    std::this_thread::sleep_for(kLookPeriod);
  }
}

std::vector<std::string> noted_memory(const JobSpec& spec, const fs::path& folder) {
  std::set<std::string> noted;
  for (int rank = 0; rank < spec.ranks; ++rank) {
    std::istringstream lines(contents_of(folder / ("memory." + std::to_string(rank))));
    for (std::string line; std::getline(lines, line);) noted.insert(line);
  }
  return {noted.begin(), noted.end()};
}

/// Memory without a name lives as long as a process maps it.
std::vector<std::string> left_memory(const std::vector<std::string>& noted) {
  std::vector<std::string> left;
  for (const std::string& memory : noted) {
    if (is_mapped(" " + memory + " ")) left.push_back(memory);
  }
  return left;
}

std::vector<std::string> left_processes(const fs::path& folder) {
  std::vector<std::string> left;
  for (const pid_t process : processes_of(folder)) {
    const std::string command = contents_of("/proc/" + std::to_string(process) + "/comm");
    left.push_back(std::to_string(process) + " " + command);
    kill(process, SIGKILL);
  }
  return left;
}

std::vector<std::string> command_line(const JobSpec& spec, const fs::path& folder) {
  std::vector<std::string> words = {spec.launcher, std::to_string(spec.ranks)};
  if (spec.launcher.empty()) {
    words = {RONDE_TEST_MPIEXEC, "-n", std::to_string(spec.ranks)};
    if (spec.launcher_spares_survivors) {
      words.insert(words.begin() + 1, "-disable-auto-cleanup");
      words.emplace_back(RONDE_TEST_OWN_SESSION);
    }
  }
  words.insert(words.end(), spec.program.begin(), spec.program.end());
  words.push_back(folder.string());
  words.insert(words.end(), spec.arguments.begin(), spec.arguments.end());
  return words;
}

bool others_reported(const JobSpec& spec, const fs::path& folder) {
  for (int rank = 0; rank < spec.ranks; ++rank) {
    if (rank != *spec.stopped_rank && !fs::exists(folder / report_file(rank))) return false;
  }
  return true;
}

void kill_stopped(const JobSpec& spec, const fs::path& folder) {
  const std::string text = contents_of(folder / ("pid." + std::to_string(*spec.stopped_rank)));
  if (is_number(text)) kill(static_cast<pid_t>(std::stol(text)), SIGKILL);
}

/// True if the launcher and all ranks ended in time. The launcher may be the first of them.
bool wait_for_end(const std::future<CommandResult>& launcher, const JobSpec& spec,
                  const fs::path& folder) {
  const auto deadline = Clock::now() + spec.deadline;
  while (Clock::now() < deadline) {
    if (spec.stopped_rank && others_reported(spec, folder)) kill_stopped(spec, folder);
    const bool has_ended = launcher.wait_for(kLookPeriod) == std::future_status::ready;
    if (has_ended && processes_of(folder).empty()) return true;
    if (has_ended) std::this_thread::sleep_for(kLookPeriod);
  }
  return false;
}

/// MPICH and UCX make files in /dev/shm that they remove a moment later, while they start. Those of
/// a job beside this one look the same.
bool is_of_library(const std::string& path) {
  return path.starts_with("/dev/shm/mpich_") || path.starts_with("/dev/shm/ucx_shm_posix_");
}

/// UCX 1.13 aborts a rank that is just connecting to one that dies (docs/networks.md).
bool was_aborted_by_ucx(const JobResult& result) {
  const auto says = [&](const char* text) { return result.output.find(text) != std::string::npos; };
  return says("Assertion `!(ep->flags & UCT_TCP_EP_FLAG_CTX_TYPE_TX)' failed") ||
         says("Assertion `wireup_ep->pending_count == 0' failed");
}

JobResult run_once(const JobSpec& spec) {
  const TemporaryFolder folder;
  const std::set<std::string> memory_before = shared_memory();
  std::map<std::string, std::string> variables(spec.variables.begin(), spec.variables.end());
  variables[kJobVariable] = folder.path().string();
  std::future<CommandResult> launcher = std::async(
      std::launch::async, run_program, command_line(spec, folder.path()), std::ref(variables));
  JobResult result;
  result.timed_out = !wait_for_end(launcher, spec, folder.path());
  if (result.timed_out) {
    for (const pid_t each : processes_of(folder.path())) kill(each, SIGKILL);
  }
  const CommandResult end = launcher.get();
  result.exit_status = end.exit_code;
  result.output = end.out + end.err;
  result.left_processes = left_processes(folder.path());
  result.left_in_dev_shm = leaked_memory(memory_before);
  result.libraries_left_files = std::erase_if(result.left_in_dev_shm, is_of_library) > 0;
  result.shared_memory = noted_memory(spec, folder.path());
  result.left_memory = left_memory(result.shared_memory);
  for (int rank = 0; rank < spec.ranks; ++rank) {
    const fs::path report = folder / report_file(rank);
    if (fs::exists(report)) result.reports[rank] = nlohmann::json::parse(contents_of(report));
  }
  return result;
}

}  // namespace

std::string report_file(int rank) {
  return "report." + std::to_string(rank) + ".json";
}

JobResult run_job(const JobSpec& spec) {
  constexpr int kMostRuns = 3;
  JobResult result = run_once(spec);
  for (int runs = 1; runs < kMostRuns && !result.timed_out && was_aborted_by_ucx(result); ++runs) {
    std::cout << "again, as UCX aborted a survivor" << std::endl;
    result = run_once(spec);
  }
  return result;
}

}  // namespace ronde::test
