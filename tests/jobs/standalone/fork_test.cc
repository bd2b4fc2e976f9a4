// SPDX-License-Identifier: Apache-2.0
// Children of fork(), which the group is not for: Note [After fork] in
// core/src/base/caller.h.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ronde/ronde.h"
#include "ronde/symmetric_heap.h"
#include "tests/support/ranks/requests.h"

namespace ronde::test {
namespace {

/// So many steps that the schedule of them freezes, and every sum is right.
void train() {
  for (int step = 0; step < 300; ++step) {
    std::vector<float> values(64, static_cast<float>(ronde::rank() + step));
    ronde::run(sum_request(values, "gradient"));
    const int size = ronde::size();
    REQUIRE(values ==
            std::vector<float>(64, static_cast<float>(size * (size - 1) / 2 + size * step)));
  }
}

bool is_filled(const SymmetricHeap& heap, int rank, int value) {
  const std::byte* const part = heap.at(static_cast<std::size_t>(rank), 0);
  return std::all_of(part, part + heap.bytes(),
                     [value](std::byte byte) { return byte == static_cast<std::byte>(value); });
}

/// How this process maps memory that Ronde has made: the permissions of each mapping.
std::set<std::string> permissions_of_memory() {
  std::set<std::string> all;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t space = line.find(' ');
    if (line.find("/memfd:ronde ") != std::string::npos) all.insert(line.substr(space + 1, 4));
  }
  return all;
}

/// What a child of fork() does wrong with the heap, of which it has a private copy of its own part.
/// tests/core/base/shared_mapping_test.cc shows that a child reaches no other memory.
std::string fault_with_heap(const SymmetricHeap& heap, int rank) {
  if (permissions_of_memory() != std::set<std::string>{"rw-p"}) return "it maps more";
  if (!is_filled(heap, rank, rank + 1)) return "it reads other values than the parent's";
  std::memset(heap.own(0), 100, heap.bytes());
  return is_filled(heap, rank, 100) ? "" : "it cannot write its own part";
}

/// What a child may try. `pending` and `prepared` are its parent's. Ends with the number of calls
/// that were not refused, and of faults with the heap.
[[noreturn]] void be_child(Runtime& runtime, const Work& pending, const PersistentOp& prepared,
                           const SymmetricHeap* heap, int rank) {
  constexpr unsigned kPatienceInS = 30;
  alarm(kPatienceInS);
  std::vector<float> values(64, 1000.0F);
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"submit", [&] { ronde::submit(sum_request(values, "gradient")); }},
      {"submit of the Runtime", [&] { runtime.submit(sum_request(values, "gradient")); }},
      {"run", [&] { ronde::run(sum_request(values, "gradient")); }},
      {"prepare", [&] { static_cast<void>(ronde::prepare(sum_request(values, "gradient"))); }},
      {"start", [&] { prepared.start({.input = values.data(), .output = values.data()}); }},
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
  const std::string fault = heap != nullptr ? fault_with_heap(*heap, rank) : "";
  if (!fault.empty()) {
    std::cerr << "the heap: " << fault << "\n";
    ++accepted;
  }
  ronde::shutdown();
  std::exit(accepted);
}

TEST_CASE("a child of fork is refused all but shutdown, and its parents train on", "[own]") {
  setenv("RONDE_LOG_LEVEL", "warning", 1);
  setenv("RONDE_SYMMETRIC_HEAP_BYTES", "1MiB", 1);
  ronde::init();
  train();
  const int own_rank = ronde::rank(), ranks = ronde::size();
  const std::shared_ptr<SymmetricHeap> heap = ronde::default_runtime().symmetric_heap();
  REQUIRE((heap != nullptr) == (ranks > 1));
  if (heap) {
    std::memset(heap->own(0), own_rank + 1, heap->bytes());
    CHECK(permissions_of_memory() == std::set<std::string>{"rw-s"});
  }
  // Each rank has one that its peers come to only when their children have ended.
  std::vector<float> values(3, 1.0F);
  const std::string own = "of rank ";
  const Work pending = ronde::submit(sum_request(values, own + std::to_string(own_rank)));
  const PersistentOp prepared = ronde::prepare(sum_request(values, "prepared"));
  Runtime& runtime = ronde::default_runtime();
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) be_child(runtime, pending, prepared, heap.get(), own_rank);
  train();
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<float> others(3, 1.0F);
    if (rank != own_rank) ronde::run(sum_request(others, own + std::to_string(rank)));
  }
  pending.wait();
  CHECK(values[0] == static_cast<float>(ranks));
  for (int rank = 0; heap && rank < ranks; ++rank) CHECK(is_filled(*heap, rank, rank + 1));
  train();
  ronde::shutdown();
}

}  // namespace
}  // namespace ronde::test
