// SPDX-License-Identifier: Apache-2.0
// NVTX's ranges, as a tool sees them that listens: tests/support/fakes/nvtx_listener.cc.
#include <dlfcn.h>

#include <cstdlib>

#include "observe/timeline/nvtx_ranges.h"
#include "tests/observe/observed_ranks.h"
#include "tests/support/processes/beside.h"

namespace ronde::test {
namespace {

struct Heard {
  std::map<std::string, int> ranges;  ///< how many of each name
  std::vector<std::string> marks;
  int open = 0;  ///< ranges that have not ended
};

Heard heard() {
  void* const library = dlopen(RONDE_NVTX_LISTENER, RTLD_NOW | RTLD_NOLOAD);
  check(library != nullptr, "NVTX loads the tool");
  const auto lines = reinterpret_cast<const char* (*)()>(dlsym(library, "nvtx_listener_lines"));
  std::istringstream text(lines());
  Heard heard;
  std::map<std::string, std::string> open;
  for (std::string line; std::getline(text, line);) {
    std::istringstream fields(line);
    std::string what, range, name;
    fields >> what;
    if (what != "mark") fields >> range;
    std::getline(fields >> std::ws, name);
    if (what == "mark") {
      heard.marks.push_back(name);
    } else if (what == "start") {
      ++heard.ranges[open[range] = name];
    } else {
      check(open.erase(range) == 1, "range " + range + " ends once");
    }
  }
  heard.open = static_cast<int>(open.size());
  return heard;
}

}  // namespace

TEST_CASE("a tool that listens to NVTX sees spans, waits, buckets and steps (cuda)") {
  setenv("NVTX_INJECTION64_PATH", RONDE_NVTX_LISTENER, 1);
  // Here, as NVTX itself races where two threads are its first.
  const std::vector<EventCallback> callbacks = {nvtx_ranges(), nvtx_ranges()};
  const inproc::Group group(std::vector<int>{0, 0});
  run_ranks(2, [&](int rank) {
    RuntimeOptions options = options_of(group, rank, test_config());
    options.on_event = callbacks[static_cast<std::size_t>(rank)];
    check(options.on_event != nullptr, "a tool listens");
    Runtime runtime(std::move(options));
    std::vector<float> values(4, 1.0F);
    // Rank 1 comes once rank 0 waits.
    if (rank == 1) check_soon([] { return heard().ranges["wait"] == 1; }, "a wait");
    runtime.submit(sum_request(values, "early")).wait();
    train(runtime, 2);
    runtime.shutdown();
  });
  Heard seen = heard();
  check(seen.open == 0, "every range ends");
  check(seen.ranges["load \"batch\" "] == 4 && seen.ranges["backward"] == 4, "spans");
  int buckets = 0;
  for (const auto& [name, count] : seen.ranges) {
    if (name.starts_with("allreduce of ")) buckets += count;
  }
  check(buckets >= 4, "buckets");
  check(std::count(seen.marks.begin(), seen.marks.end(), "end of step 2") == 2, "steps");
}

}  // namespace ronde::test
