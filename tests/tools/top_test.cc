// SPDX-License-Identifier: Apache-2.0
// `ronde top` on a group whose ranks are threads of this process.
#include <pty.h>
#include <sys/wait.h>

#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/src/base/json.h"
#include "tests/observe/observed_ranks.h"
#include "tests/support/processes/beside.h"
#include "tests/support/processes/temporary_folder.h"
#include "tests/support/processes/unix_socket.h"
#include "tests/tools/ronde_command.h"

using namespace ronde;
using namespace ronde::test;
using Catch::Contains;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

/// `body` on rank 0 of a group of two, whose ranks have trained and can be watched. The command
/// has the same XDG_RUNTIME_DIR. `read_gpu`: of rank 0; may be empty.
void with_job(const std::function<void()>& body, const ReadGpu& read_gpu = {}) {
  const TemporaryFolder folder;
  setenv("XDG_RUNTIME_DIR", folder.path().c_str(), 1);
  Config config = test_config();
  config.top = true;
  const auto train_and_call = [&](int rank, Runtime& runtime, Observer&) {
    train(runtime, 20);
    if (rank == 0) body();
    runtime.submit(barrier_request()).wait();
    return true;
  };
  run_observed(2, config, train_and_call, read_gpu);
  unsetenv("XDG_RUNTIME_DIR");
}

/// What the command says once both ranks have answered it: it gives a rank a second.
CommandResult run_top(std::vector<std::string> words) {
  words.insert(words.begin(), "top");
  CommandResult result;
  bool have_answered = false;
  const auto ask = [&] {
    if (!have_answered) result = run_command(words);
    have_answered = result.err.find("does not answer") == std::string::npos;
    return have_answered;
  };
  check_soon(ask, "an answer of both ranks");
  return result;
}

/// The command in a terminal: calls `act` with its process and the terminal once it shows both
/// ranks, and returns all that it writes.
std::string watched(const std::function<void(pid_t process, int terminal)>& act, int& status) {
  int terminal = -1;
  winsize size{};
  size.ws_row = 30;
  size.ws_col = 100;
  const pid_t process = forkpty(&terminal, nullptr, nullptr, &size);
  if (process == 0) {
    execl(RONDE_COMMAND, "ronde", "top", nullptr);
    _exit(127);
  }
  check(process > 0, "a terminal");
  std::string text;
  bool has_acted = false;
  std::array<char, 4096> buffer{};
  for (ssize_t count = 0; (count = read(terminal, buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<std::size_t>(count));
    if (has_acted || text.find(": 2 of 2 ranks ") == std::string::npos) continue;
    has_acted = true;
    act(process, terminal);
  }
  check_equal(waitpid(process, &status, 0), process, "the process that ended");
  close(terminal);
  return text;
}

}  // namespace

TEST_CASE("ronde top shows a job, its rates and its ranks") {
  with_job([] {
    const std::string pid = std::to_string(getpid());
    const auto json = run_top({"--json"});
    check_equal(json.exit_code, 0, "the exit code");
    const Json jobs = Json::parse(json.out);
    check_equal(jobs.size(), std::size_t{1}, "the number of jobs");
    const Json& job = jobs.at(0);
    check_equal(job.at("program").get<std::string>(), std::string("top_tests"), "the program");
    check_equal(job.at("ranks").get<int>(), 2, "the size");
    check(job.at("steps_per_s") > 0.0, "steps");
    const double samples = job.at("samples_per_s").get<double>();
    const double steps = job.at("steps_per_s").get<double>();
    check(samples > 8 * steps && samples < 17 * steps, "8 samples a step on each of 2 ranks");
    check(job.at("bytes_per_s") > 400'000 * steps, "all bytes of 2 ranks");
    for (int rank = 0; rank < 2; ++rank) {
      const Json& row = job.at("ranks_here").at(static_cast<std::size_t>(rank));
      check_equal(row.at("rank").get<int>(), rank, "the rank");
      check_equal(row.at("pid").get<int>(), getpid(), "the process");
    }
    const auto text = run_top({});  // its output is no terminal
    check_equal(text.exit_code, 0, "the exit code");
    check_contains(text.out, "top_tests: 2 of 2 ranks on ");
    check_contains(text.out, "cpu=inproc");
    check_contains(text.out, "steps/s");
    check_contains(text.out, "exposed\n");  // and no columns of a GPU
    check_contains(run_top({"--once", pid}).out, "top_tests: 2 of 2");
    const auto other = run_command({"top", "--once", "1"});
    check_equal(other.exit_code, 1, "the exit code");
    check_contains(other.err, "no running job of this user on this host with process 1 has");
  });
}

TEST_CASE("ronde top has columns of cuda GPUs where a rank reports them") {
  const auto body = [] {
    const Json rows = Json::parse(run_top({"--json"}).out).at(0).at("ranks_here");
    check_equal(rows.at(0).at("gpu_utilization_percent").get<double>(), 93.0, "per cent");
    check_equal(rows.at(0).at("nvlink_sent_bytes_per_s").get<double>(), 0.0, "a rate");
    check(!rows.at(1).contains("gpu_utilization_percent"), "none without a GPU");
    const std::string text = run_top({}).out;
    check_contains(text, "exposed      gpu %     gpu MB   out MB/s\n");
    check_contains(text, " %       93.0     2000.0        0.0\n");
    check_contains(text, " %          -          -          -\n");
  };
  with_job(body, [] {
    return GpuReading{{{"gpu_utilization_percent", 93}, {"gpu_used_bytes", 2e9}},
                      {{"nvlink_sent_bytes", 1}}};
  });
}

TEST_CASE("without a job ronde top says so, and removes sockets of processes that are gone") {
  const TemporaryFolder folder;
  const std::map<std::string, std::string> environment = {{"XDG_RUNTIME_DIR", folder.path()}};
  const auto nothing = ended(1, run_command({"top", "--once"}, environment));
  CHECK(nothing.err == "ronde top: no running job of this user on this host has RONDE_TOP=1\n");
  fs::create_directory(folder / "ronde");
  fs::permissions(folder / "ronde", fs::perms::owner_all);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  REQUIRE(waitpid(child, nullptr, 0) == child);
  const fs::path gone = folder / ("ronde/" + std::to_string(child) + ".0.sock");
  const fs::path alive = folder / ("ronde/" + std::to_string(getpid()) + ".0.sock");
  const fs::path foreign = folder / "ronde/notes.sock";
  for (const fs::path& path : {gone, alive, foreign}) leave_socket(path);
  CHECK(run_command({"top", "--once"}, environment).exit_code == 1);
  CHECK_FALSE(fs::exists(gone));
  CHECK(fs::exists(alive));
  CHECK(fs::exists(foreign));
  fs::permissions(folder / "ronde", fs::perms::all);
  CHECK_THAT(run_command({"top", "--once"}, environment).err, Contains("of this user alone"));
}

TEST_CASE("ronde top leaves a terminal as it was, by a key and by a signal") {
  with_job([] {
    int status = -1;
    const auto press = [](pid_t, int terminal) { check(write(terminal, "q", 1) == 1, "a key"); };
    const std::string pressed = watched(press, status);
    check_equal(status, 0, "the status");
    check_contains(pressed, "top_tests: 2 of 2 ranks");
    check(pressed.starts_with("\x1b[?1049h") && pressed.ends_with("\x1b[?1049l"), "its own page");
    const std::string ended = watched([](pid_t process, int) { kill(process, SIGTERM); }, status);
    check_equal(status, 0, "the status");
    check(ended.ends_with("\x1b[?25h\x1b[?1049l"), "the cursor and the page of before");
  });
}
