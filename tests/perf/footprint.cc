// SPDX-License-Identifier: Apache-2.0
// mpiexec -n 2 footprint [model] [pieces]
//
// What Ronde takes from the host besides time: the memory of all ranks together before init and
// after a model's gradients were exchanged (each tensor cut into so many pieces), and the processor
// time of a rank that has nothing to do or waits for a late one. Then the same of worlds, each of
// which has summed once, and what a sum in one takes beside the others. Prints markdown tables.
#include <mpi.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ronde/ronde.h"
#include "tests/perf/rounds.h"
#include "tests/support/ranks/requests.h"
#include "tools/bench/base/gradient_lists.h"

namespace {

using ronde::perf::median;
using Clock = std::chrono::steady_clock;

using Tensors = std::vector<std::vector<float>>;

constexpr int kExchanges = 20;
constexpr int kWaits = 5;
constexpr std::chrono::seconds kLateness{1};
constexpr std::chrono::seconds kIdleness{5};

/// Sums each tensor over all ranks, all at once. Submits the last tensor first, as backward does.
void exchange(Tensors& tensors) {
  std::vector<ronde::Work> works;
  for (std::size_t i = tensors.size(); i-- > 0;) {
    const std::string name = std::to_string(i) + ": " + std::to_string(tensors[i].size());
    works.push_back(ronde::submit(ronde::test::sum_request(tensors[i], name)));
  }
  for (const ronde::Work& work : works) work.wait();
}

double over_ranks(MPI_Op op, double value) {
  MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, op, MPI_COMM_WORLD);
  return value;
}

double number_of_process(const std::string& name, const std::string& key) {
  std::ifstream file("/proc/self/" + name);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return std::stod(line.substr(key.size()));
  }
  throw std::runtime_error("/proc/self/" + name + " has no line '" + key + "'");
}

/// Of all ranks, in MiB: what they share is counted once.
double memory_of_host() {
  MPI_Barrier(MPI_COMM_WORLD);
  return over_ranks(MPI_SUM, number_of_process("smaps_rollup", "Pss:") / 1024);
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Processor time of this process in percent of the time that `action` takes.
template <typename Action>
double load_of(Action action) {
  const double cpu_before = cpu_seconds();
  const auto start = Clock::now();
  action();
  const std::chrono::duration<double> taken = Clock::now() - start;
  return 100.0 * (cpu_seconds() - cpu_before) / taken.count();
}

/// With every page touched, so that it counts before init.
Tensors make_tensors(const std::string& model, std::size_t pieces) {
  Tensors tensors;
  for (const std::size_t count : ronde::tool::gradient_list(model).tensors) {
    for (std::size_t i = 0; i < pieces; ++i) {
      const std::size_t size = count / pieces + (i < count % pieces ? 1 : 0);
      if (size > 0) tensors.emplace_back(size, 1.0F);
    }
  }
  return tensors;
}

void measure_memory(const std::string& model, std::size_t pieces) {
  Tensors tensors = make_tensors(model, pieces);
  const double before = memory_of_host();
  ronde::init();
  const double after_init = memory_of_host();
  for (int i = 0; i < kExchanges; ++i) exchange(tensors);
  const double after = memory_of_host();
  if (ronde::rank() != 0) return;
  std::printf(
      "%d ranks, backend %s, %s: %zu tensors\n\n"
      "| memory of all ranks, MiB: before init | after init | after %d exchanges | more than "
      "before "
      "|\n|---|---|---|---|\n| %.1f | %.1f | %.1f | %.1f |\n\n",
      ronde::size(), ronde::default_runtime().backend_name(ronde::DeviceKind::Cpu).c_str(),
      model.c_str(), tensors.size(), kExchanges, before, after_init, after, after - before);
}

/// The last rank is late each time: of the others, the one with the highest load.
double load_while_waiting() {
  Tensors data(1, std::vector<float>(1000, 1.0F));
  const bool is_late = ronde::rank() == ronde::size() - 1;
  std::vector<double> loads;
  for (int i = 0; i < kWaits; ++i) {
    exchange(data);
    const double load = load_of([&] {
      if (is_late) std::this_thread::sleep_for(kLateness);
      exchange(data);
    });
    loads.push_back(over_ranks(MPI_MAX, is_late ? 0.0 : load));
  }
  return median(loads);
}

void measure_load() {
  const double waiting = load_while_waiting();
  const double idle = over_ranks(MPI_MAX, load_of([] { std::this_thread::sleep_for(kIdleness); }));
  if (ronde::rank() != 0) return;
  std::printf(
      "| processor time, %% of a core: idle | waiting 1 s for a late rank |\n|---|---|\n"
      "| %.2f | %.2f |\n",
      idle, waiting);
}

void sum(ronde::ProcessSet set) {
  std::vector<float> values(1);
  ronde::Request request = ronde::test::sum_request(values, "sum");
  request.set = set;
  ronde::run(std::move(request));
}

double us_of_sum(ronde::ProcessSet set) {
  constexpr int kSums = 20000;
  for (int i = 0; i < kSums / 10; ++i) sum(set);
  const auto start = Clock::now();
  for (int i = 0; i < kSums; ++i) sum(set);
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / kSums;
}

void measure_worlds(bool speaks) {
  if (speaks) {
    std::printf(
        "\n| worlds | threads of a rank | MiB of all ranks, more than without | idle, %% of a core "
        "| us of a sum in one |\n|---|---|---|---|---|\n");
  }
  const double before = memory_of_host();
  for (const int count : {1, 8, 64}) {
    std::vector<ronde::World> worlds;
    for (int i = 0; i < count; ++i) {
      worlds.emplace_back("world" + std::to_string(i),
                          ronde::InitOptions{.mpi_communicator = MPI_Comm_c2f(MPI_COMM_WORLD)});
      sum(worlds.back().set());
    }
    const double memory = memory_of_host() - before;
    const double idle =
        over_ranks(MPI_MAX, load_of([] { std::this_thread::sleep_for(kIdleness); }));
    const double us = us_of_sum(worlds.front().set());
    if (speaks) {
      std::printf("| %d | %.0f | %.1f | %.2f | %.2f |\n", count,
                  number_of_process("status", "Threads:"), memory, idle, us);
    }
    for (ronde::World& world : worlds) world.shutdown();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string model = argc > 1 ? argv[1] : "resnet50";
  const int pieces = argc > 2 ? std::max(1, std::atoi(argv[2])) : 1;
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  measure_memory(model, static_cast<std::size_t>(pieces));
  measure_load();
  const bool speaks = ronde::rank() == 0;
  ronde::shutdown();
  measure_worlds(speaks);
  MPI_Finalize();
  return 0;
}
