// SPDX-License-Identifier: Apache-2.0
// mpiexec -n 8 control_plane [steps]
//
// What the control plane costs over several hosts: messages and bytes at rank 0 in a step of cached
// allreduces, and the step's median time. Hosts may be simulated by RONDE_HOST_ID. Steps of one
// small tensor, and of 64 whose bits travel together. Prints a markdown table.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "ronde/ronde.h"
#include "tests/perf/exchange.h"
#include "tests/perf/rounds.h"

namespace {

using ronde::perf::exchange;
using Clock = std::chrono::steady_clock;

/// The traffic of this rank's control plane so far.
struct Traffic {
  double received = 0.0;
  double sent = 0.0;
  double bytes = 0.0;
};

Traffic traffic() {
  Traffic seen;
  for (const ronde::StatsGroup& group : ronde::default_runtime().stats()) {
    if (group.part != "mpi transport") continue;
    for (const auto& [name, value] : group.counters) {
      const auto number = static_cast<double>(value);
      if (name == "messages_received") seen.received += number;
      if (name == "messages_sent") seen.sent += number;
      if (name == "sent_bytes" || name == "received_bytes") seen.bytes += number;
    }
  }
  return seen;
}

void measure(std::size_t tensors, int steps) {
  constexpr int kWarmUp = 50;
  ronde::perf::Tensors data(tensors, {0.0F});
  for (int i = 0; i < kWarmUp; ++i) exchange(data);
  const Traffic before = traffic();
  std::vector<double> times;
  for (int i = 0; i < steps; ++i) {
    const auto start = Clock::now();
    exchange(data);
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  const Traffic after = traffic();
  if (ronde::rank() != 0) return;
  std::printf("| %zu | %.2f | %.2f | %.0f | %.0f |\n", tensors,
              (after.received - before.received) / steps, (after.sent - before.sent) / steps,
              (after.bytes - before.bytes) / steps, ronde::perf::median(times));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1000;
  ronde::init();
  if (ronde::rank() == 0) {
    std::printf("%d ranks on %d hosts, %d steps\n\n", ronde::size(),
                ronde::default_runtime().topology().hosts(), steps);
    std::printf("| tensors | received | sent | bytes | step, us |\n|---|---|---|---|---|\n");
  }
  for (const std::size_t tensors : {1U, 64U}) measure(tensors, steps);
  ronde::shutdown();
  return 0;
}
