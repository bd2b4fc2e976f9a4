// SPDX-License-Identifier: Apache-2.0
// rank0_cost [tensors] [steps]
//
// What one cycle of rank 0 costs in negotiation, with as many ranks as large jobs have: hosts of
// eight ranks, whose leaders each announce all tensors of a step by their cache slots, in a message
// and a cycle of their own. Prints a markdown table of medians over the steps.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "core/src/agree/negotiator.h"
#include "tests/perf/rounds.h"

namespace {

using namespace ronde;
using Clock = std::chrono::steady_clock;

constexpr int kRanksOfHost = 8;

double micros_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct Costs {
  std::vector<double> cycle, deciding, idle;
};

Costs measure(int ranks, int tensors, int steps) {
  std::vector<int> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  ResponseCache cache(0);
  Negotiator negotiator(members, cache, 4096, [](const OpSpec&) { return std::nullopt; });
  HostReadyMessage::Part all{{members.begin(), members.end()}, {}};
  for (int i = 0; i < tensors; ++i) {
    OpSpec spec;
    spec.name = "layer." + std::to_string(i) + ".weight";
    spec.shape = {1024};
    all.ready.requests.push_back({spec.name, share(spec), true});
  }
  negotiator.add(all.ranks, all.ready, Clock::now());
  std::uint64_t decided = negotiator.decide(false)->number;

  std::vector<HostReadyMessage::Part> hosts;
  for (int first = 0; first < ranks; first += kRanksOfHost) {
    HostReadyMessage::Part& host = hosts.emplace_back();
    for (int rank = first; rank < std::min(first + kRanksOfHost, ranks); ++rank) {
      host.ranks.push_back(rank);
    }
    for (int i = 0; i < tensors; ++i) host.ready.cached.set(static_cast<std::size_t>(i));
  }
  Costs costs;
  for (int step = 0; step < steps; ++step) {
    const auto start = Clock::now();
    double last = 0.0;
    for (HostReadyMessage::Part& host : hosts) {
      host.ready.decisions_seen = decided;
      const auto begin = Clock::now();
      negotiator.add(host.ranks, host.ready, begin);
      if (const auto decision = negotiator.decide(false)) decided = decision->number;
      last = micros_since(begin);
    }
    costs.cycle.push_back(micros_since(start) / static_cast<double>(hosts.size()));
    costs.deciding.push_back(last);
    const auto begin = Clock::now();
    for (int i = 0; i < 10; ++i) {
      if (negotiator.decide(false)) std::abort();
    }
    costs.idle.push_back(micros_since(begin) / 10);
  }
  if (decided != static_cast<std::uint64_t>(steps) + 1) std::abort();
  return costs;
}

}  // namespace

int main(int argc, char** argv) {
  const int tensors = argc > 1 ? std::max(1, std::atoi(argv[1])) : 300;
  const int steps = argc > 2 ? std::max(1, std::atoi(argv[2])) : 11;
  std::printf("%d tensors, %d steps\n\n", tensors, steps);
  std::printf("| ranks | cycle with a host's message, us | the last of a step, us | idle, us |\n");
  std::printf("|---|---|---|---|\n");
  for (const int ranks : {100, 1'000, 10'000}) {
    Costs costs = measure(ranks, tensors, steps);
    std::printf("| %d | %.2f | %.2f | %.3f |\n", ranks, perf::median(costs.cycle),
                perf::median(costs.deciding), perf::median(costs.idle));
    std::fflush(stdout);
  }
  return 0;
}
