// SPDX-License-Identifier: Apache-2.0
#include "tests/support/harness/watchdog.h"

#include <dirent.h>
#include <execinfo.h>
#include <fcntl.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string_view>

namespace ronde_test {
namespace {

// SIGUSR1 belongs to hydra, the launcher.
constexpr int kBacktraceSignal = SIGUSR2;
constexpr int kExitStatus = 124;
constexpr int kMaxFrames = 64;

sem_t backtrace_done;

// Standard error as the program began with it: a case may have captured it when it hangs.
const int stderr_at_start = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);

void print_own_backtrace(int /*signal*/) {
  const int saved_errno = errno;
  std::array<void*, kMaxFrames> frames{};
  backtrace_symbols_fd(frames.data(), backtrace(frames.data(), kMaxFrames), stderr_at_start);
  sem_post(&backtrace_done);
  errno = saved_errno;
}

const char* launcher_rank() {
  for (const char* name : {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK",
                           "RANK", "SLURM_PROCID"}) {
    if (const char* value = std::getenv(name)) return value;
  }
  return "0";
}

// A thread that blocks the signal, or is stuck in the kernel, does not answer: one second each.
void print_backtrace_of(pid_t thread) {
  dprintf(stderr_at_start, "watchdog: thread %d\n", static_cast<int>(thread));
  if (syscall(SYS_tgkill, getpid(), thread, kBacktraceSignal) != 0) return;
  timespec limit{};
  clock_gettime(CLOCK_REALTIME, &limit);
  limit.tv_sec += 1;
  while (sem_timedwait(&backtrace_done, &limit) != 0) {
    if (errno == EINTR) continue;
    dprintf(stderr_at_start, "watchdog: thread %d does not answer\n", static_cast<int>(thread));
    return;
  }
}

void print_all_backtraces() {
  sem_init(&backtrace_done, 0, 0);
  // The first call loads libgcc, which must not happen inside a signal handler.
  std::array<void*, 1> frame{};
  backtrace(frame.data(), 1);
  struct sigaction action {};
  action.sa_handler = print_own_backtrace;
  sigaction(kBacktraceSignal, &action, nullptr);

  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return;
  const auto self = static_cast<pid_t>(syscall(SYS_gettid));
  while (const dirent* entry = readdir(tasks)) {
    const auto thread = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
    if (thread > 0 && thread != self) print_backtrace_of(thread);
  }
  closedir(tasks);
}

std::optional<std::chrono::seconds> seconds_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  const std::string_view view(text);
  std::int64_t seconds = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), seconds);
  if (error != std::errc() || end != view.data() + view.size() || seconds <= 0) {
    throw std::runtime_error(variable + ("='" + std::string(view)) +
                             "' is not a positive number of seconds");
  }
  return std::chrono::seconds(seconds);
}

[[noreturn]] void expire(const std::string& test_case, std::chrono::seconds deadline) {
  dprintf(stderr_at_start, "watchdog: test '%s' on rank %s exceeded %lld s\n", test_case.c_str(),
          launcher_rank(), static_cast<long long>(deadline.count()));
  print_all_backtraces();
  _exit(kExitStatus);
}

}  // namespace

int uncaptured_stderr() {
  return stderr_at_start;
}

void Watchdog::arm(const std::string& test_case, std::chrono::seconds deadline) {
  // Made here, before the case runs: the check of its virtual table by UBSan opens a pipe, and a
  // case may have used up the descriptors.
  auto never_notified = std::make_unique<std::condition_variable_any>();
  thread_ = std::jthread(
      [test_case, deadline, changed = std::move(never_notified)](const std::stop_token& ended) {
        std::mutex mutex;
        std::unique_lock lock(mutex);
        changed->wait_for(lock, ended, deadline, [] { return false; });
        if (!ended.stop_requested()) expire(test_case, deadline);
      });
}

void Watchdog::disarm() {
  thread_ = {};  // ends and joins it
}

Watchdog& watchdog() {
  // Never destroyed: a case may end its process.
  static auto& instance = *new Watchdog;
  return instance;
}

std::chrono::seconds watchdog_deadline(bool is_helper) {
  constexpr std::chrono::seconds kDefault{60};
  constexpr std::chrono::seconds kToReport{3};  // for the one that waits for a helper
  const auto end = seconds_in("RONDE_TEST_ENDS_AT");
  if (!end) return seconds_in("RONDE_TEST_DEADLINE_S").value_or(kDefault);
  const std::chrono::seconds left = *end - std::chrono::seconds(std::time(nullptr));
  return std::max(left - (is_helper ? kToReport : std::chrono::seconds{0}),
                  std::chrono::seconds{1});
}

}  // namespace ronde_test
