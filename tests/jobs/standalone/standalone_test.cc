// SPDX-License-Identifier: Apache-2.0
// A program that knows nothing of MPI. What the other ranks send is known by formula.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "ronde/ronde.h"
#include "tests/support/ranks/requests.h"

namespace ronde::test {
namespace {

void init_quietly() {
  setenv("RONDE_LOG_LEVEL", "warning", 1);
  setenv("RONDE_FUSION_BYTES", "16KiB", 1);
  ronde::init();
}

TEST_CASE("init and shutdown may be called on different threads", "[own]") {
  std::thread(init_quietly).join();
  std::vector<float> values(10, 1.0F);
  std::thread([&values] { ronde::run(sum_request(values, "sum")); }).join();
  CHECK(values == std::vector<float>(10, static_cast<float>(ronde::size())));
  std::thread([] { ronde::shutdown(); }).join();
  CHECK_FALSE(ronde::is_initialized());
  ronde::shutdown();  // once more does nothing
}

TEST_CASE("a rank that is done waits in shutdown for the work of the others", "[n2][n4][own]") {
  init_quietly();
  std::vector<std::vector<float>> all(20, std::vector<float>(5000, 1.0F));
  std::vector<Work> works;
  for (std::vector<float>& values : all) {
    works.push_back(ronde::submit(sum_request(values, std::to_string(works.size()))));
  }
  const auto size = static_cast<float>(ronde::size());
  ronde::shutdown();  // lets operations finish that every rank has submitted
  for (const Work& work : works) {
    CHECK(work.done());
    CHECK_NOTHROW(work.wait());
  }
  for (const std::vector<float>& values : all) CHECK(values == std::vector<float>(5000, size));
}

/// Whether a thread of the process runs, or would if it had a core.
bool is_busy(int process) {
  const std::string tasks = "/proc/" + std::to_string(process) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    std::ifstream file(task.path() / "stat");
    std::string status;
    std::getline(file, status);  // nothing, of a thread that has ended since it was listed
    if (status.substr(status.rfind(')') + 1).starts_with(" R")) return true;
  }
  return false;
}

/// How many of 100 looks in half a second find the process busy.
int busy_looks(int process) {
  int busy = 0;
  for (int look = 0; look < 100; ++look) {
    if (is_busy(process)) ++busy;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return busy;
}

/// The process of each rank. All ranks call it.
std::vector<int> exchange_processes() {
  std::vector<int> processes(static_cast<std::size_t>(ronde::size()));
  processes[static_cast<std::size_t>(ronde::rank())] = getpid();
  Request request;
  request.dtype = DataType::I32;
  request.op = ReduceOp::Sum;
  request.shape = {static_cast<std::int64_t>(processes.size())};
  request.input = request.output = processes.data();
  ronde::submit(std::move(request)).wait();
  return processes;
}

/// A process that spins is busy at each look. One that sleeps may be so, too, where it waits for a
/// core: it has a minute, until the watchdog ends the test.
void await_sleep_of_others(const std::vector<int>& processes) {
  constexpr int kMostBusyLooks = 20;
  for (const int process : processes) {
    while (process != getpid() && busy_looks(process) > kMostBusyLooks) {
    }
  }
}

TEST_CASE("waiting for a late rank leaves the core to others", "[n2][n3][own]") {
  init_quietly();
  const std::vector<int> processes = exchange_processes();
  if (ronde::rank() == ronde::size() - 1) await_sleep_of_others(processes);
  CHECK(exchange_processes() == processes);
  ronde::shutdown();
}

TEST_CASE("ranks in shutdown leave the core to one that works on, longer than a stall may last",
          "[n2][n3][own]") {
  setenv("RONDE_STALL_WARN_S", "1", 1);
  setenv("RONDE_STALL_ABORT_S", "5", 1);
  init_quietly();
  const std::vector<int> processes = exchange_processes();
  // Each look takes half a second.
  for (int look = 0; look < 12 && ronde::rank() == 0; ++look) await_sleep_of_others(processes);
  CHECK_NOTHROW(ronde::shutdown());
}

}  // namespace
}  // namespace ronde::test
