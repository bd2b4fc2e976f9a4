// SPDX-License-Identifier: Apache-2.0
// What a process holds does not grow with starts, steps and process sets. Each case prints a table.
// RONDE_TEST_SOAK=1 runs as many as a long training has.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>

#include "ronde/runtime.h"
#include "tests/support/fakes/memory_store.h"
#include "tests/support/ranks/built_in.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr int kRanks = 2;
constexpr int kRows = 10;
constexpr long kMostGrowth_kib = 4096;  // pages that are written for the first time
constexpr auto kKernelTakes = std::chrono::seconds(10);

/// As /proc tells of this process.
struct Held {
  long descriptors = 0, threads = 0, mappings = 0, resident_kib = 0;
};

long status(std::string_view name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) return std::stol(line.substr(name.size()));
  }
  throw std::runtime_error("no " + std::string(name) + " in /proc/self/status");
}

/// A thread that has been joined counts until the kernel has taken it away, a moment later.
long threads_once_gone(long most) {
  const auto deadline = std::chrono::steady_clock::now() + kKernelTakes;
  long threads = status("Threads:");
  while (threads > most && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
    threads = status("Threads:");
  }
  return threads;
}

Held held(long threads_before) {
  using Folder = std::filesystem::directory_iterator;
  std::ifstream maps("/proc/self/maps");
  const auto lines = std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  return {std::distance(Folder("/proc/self/fd"), Folder()), threads_once_gone(threads_before),
          lines, status("VmRSS:")};
}

bool is_long() {
  const char* const soak = std::getenv("RONDE_TEST_SOAK");
  return soak != nullptr && std::string_view(soak) == "1";
}

/// Repeats `action`, and prints and keeps what is held after each tenth.
std::vector<Held> repeat(const char* what, int count, const std::function<void(int)>& action) {
  std::vector<Held> rows;
  std::cout << "| " << what << " | descriptors | threads | mappings | VmRSS, KiB |\n";
  for (int i = 1; i <= count; ++i) {
    action(i);
    if (i % (count / kRows) != 0) continue;
    const long before = rows.empty() ? std::numeric_limits<long>::max() : rows.front().threads;
    const Held now = rows.emplace_back(held(before));
    std::cout << "| " << i << " | " << now.descriptors << " | " << now.threads << " | "
              << now.mappings << " | " << now.resident_kib << " |" << std::endl;
  }
  return rows;
}

/// After the first tenth, which warms up.
void check_does_not_grow(const std::vector<Held>& rows) {
  for (const Held& row : rows) {
    CHECK(row.descriptors == rows.front().descriptors);
    CHECK(row.threads <= rows.front().threads);
  }
  CHECK(rows.back().mappings <= rows.front().mappings + kRows);
  CHECK(rows.back().resident_kib <= rows.front().resident_kib + kMostGrowth_kib);
}

/// Two ranks over shared memory; `action` runs on both.
void run_group(const std::function<void(Runtime& runtime)>& action) {
  MemoryStore store;
  run_ranks(kRanks, [&](int rank) {
    KeyValueStart start = store.start(rank, kRanks);
    start.local_rank = rank;
    Runtime runtime(options_without_launcher(start));
    action(runtime);
    runtime.shutdown();
  });
}

/// The gradients of a net of two layers.
struct Gradients {
  std::array<std::vector<float>, 4> tensors = {std::vector<float>(512), std::vector<float>(64),
                                               std::vector<float>(64), std::vector<float>(1)};

  void average(Runtime& runtime, ProcessSet set = kGlobalSet) {
    std::vector<Work> works;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].assign(tensors[i].size(), static_cast<float>(runtime.topology().rank));
      Request request = sum_request(tensors[i], "gradient " + std::to_string(i));
      request.set = set;
      request.op = ReduceOp::Average;
      works.push_back(runtime.submit(std::move(request)));
    }
    for (const Work& work : works) work.wait();
    for (const std::vector<float>& tensor : tensors) {
      check(tensor.front() == 0.5F && tensor.back() == 0.5F, "the average of 0 and 1");
    }
  }
};

/// `action` on both ranks of one group, as often; what is held is looked at by rank 0.
std::vector<Held> repeat_in_group(const char* what, int count,
                                  const std::function<void(Runtime&, Gradients&)>& action) {
  std::vector<Held> rows;
  run_group([&](Runtime& runtime) {
    Gradients gradients;
    const auto once = [&](int) { action(runtime, gradients); };
    if (runtime.topology().rank == 0) {
      rows = repeat(what, count, once);
    } else {
      for (int i = 1; i <= count; ++i) once(i);
    }
  });
  return rows;
}

}  // namespace

TEST_CASE("starts and shutdowns leave nothing behind") {
  check_does_not_grow(repeat("starts", is_long() ? 10'000 : 200, [](int) {
    run_group([](Runtime& runtime) { Gradients().average(runtime); });
  }));
}

TEST_CASE("steps of a small net leave nothing behind") {
  check_does_not_grow(
      repeat_in_group("steps", is_long() ? 1'000'000 : 20'000,
                      [](Runtime& runtime, Gradients& gradients) { gradients.average(runtime); }));
}

TEST_CASE("process sets that are removed leave nothing behind") {
  check_does_not_grow(repeat_in_group("process sets", is_long() ? 2000 : 200,
                                      [](Runtime& runtime, Gradients& gradients) {
                                        const ProcessSet set = runtime.add_process_set({0, 1});
                                        gradients.average(runtime, set);
                                        runtime.remove_process_set(set);
                                      }));
}
