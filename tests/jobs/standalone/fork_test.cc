// SPDX-License-Identifier: Apache-2.0
// Children of fork(), which the group is not for: Note [After fork] in
// core/src/base/after_fork.h.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "ronde/ronde.h"

namespace ronde::test {
namespace {

Request sum_of(std::vector<float>& values, const std::string& name) {
  Request request;
  request.name = name;
  request.shape = {static_cast<std::int64_t>(values.size())};
  request.input = request.output = values.data();
  return request;
}

/// So many steps that the schedule of them freezes, and every sum is right.
void train() {
  for (int step = 0; step < 300; ++step) {
    std::vector<float> values(64, static_cast<float>(ronde::rank() + step));
    ronde::run(sum_of(values, "gradient"));
    const int size = ronde::size();
    REQUIRE(values ==
            std::vector<float>(64, static_cast<float>(size * (size - 1) / 2 + size * step)));
  }
}

/// What a child may try. `pending`: an operation of its parent's. Ends with the
/// number of calls that were not refused.
[[noreturn]] void be_child(Runtime& runtime, const Work& pending) {
  constexpr unsigned kPatienceInS = 30;
  alarm(kPatienceInS);
  std::vector<float> values(64, 1000.0F);
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"submit", [&] { ronde::submit(sum_of(values, "gradient")); }},
      {"submit of the Runtime", [&] { runtime.submit(sum_of(values, "gradient")); }},
      {"run", [&] { ronde::run(sum_of(values, "gradient")); }},
      {"wait", [&] { pending.wait(); }},
      {"wait_for", [&] { pending.wait_for(std::chrono::milliseconds(1)); }},
      {"done", [&] { static_cast<void>(pending.done()); }},
      {"on_done", [&] { pending.on_done([] {}); }},
      {"barrier", [] { ronde::barrier(); }},
      {"join", [] { ronde::join(); }},
      {"add_process_set", [] { ronde::add_process_set({0}); }},
      {"abort", [] { ronde::abort("by a child"); }},
      {"stats of the Runtime", [&] { static_cast<void>(runtime.stats()); }},
      {"rank", [] { ronde::rank(); }},
      {"init", [] { ronde::init(); }},
  };
  int accepted = ronde::is_initialized() ? 1 : 0;
  for (const auto& [name, call] : calls) {
    try {
      call();
    } catch (const UsageError& error) {
      if (std::string(error.what()).find("in a child of fork()") != std::string::npos) continue;
    }
    std::cerr << name << " was not refused\n";
    ++accepted;
  }
  ronde::shutdown();
  std::exit(accepted);
}

TEST_CASE("a child of fork is refused all but shutdown, and its parents train on", "[own]") {
  setenv("RONDE_LOG_LEVEL", "warning", 1);
  ronde::init();
  train();
  // Each rank has one that its peers come to only when their children have ended.
  std::vector<float> values(3, 1.0F);
  const std::string own = "of rank ";
  const Work pending = ronde::submit(sum_of(values, own + std::to_string(ronde::rank())));
  Runtime& runtime = ronde::default_runtime();
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) be_child(runtime, pending);
  train();
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  for (int rank = 0; rank < ronde::size(); ++rank) {
    std::vector<float> others(3, 1.0F);
    if (rank != ronde::rank()) ronde::run(sum_of(others, own + std::to_string(rank)));
  }
  pending.wait();
  CHECK(values[0] == static_cast<float>(ronde::size()));
  train();
  ronde::shutdown();
}

}  // namespace
}  // namespace ronde::test
