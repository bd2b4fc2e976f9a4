// SPDX-License-Identifier: Apache-2.0
// rank0_cost [tensors] [steps]
//
// What one cycle of rank 0 costs in negotiation, with as many ranks as large jobs have: hosts of
// eight ranks, whose leaders form a tree; each child of rank 0 announces all tensors of a step by
// their cache slots, in a message and a cycle of its own. Prints a markdown table of medians over
// the steps.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/src/agree/messages.h"
#include "core/src/agree/negotiator.h"
#include "ronde/topology.h"
#include "tests/perf/rounds.h"

namespace {

using namespace ronde;
using Clock = std::chrono::steady_clock;

constexpr int kRanksOfHost = 8;

double micros_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct Costs {
  std::vector<double> step, cycle, deciding, idle;
};

Topology topology_of(int ranks) {
  std::vector<int> host_of;
  for (int rank = 0; rank < ranks; ++rank) host_of.push_back(rank / kRanksOfHost);
  return make_topology(0, host_of);
}

/// What rank 0 receives in a step: from each of its children, and itself, of the ranks there.
std::vector<HostReadyMessage::Part> parts_of_step(const Topology& topology, int tensors) {
  std::vector<int> senders = topology.children();
  senders.push_back(0);
  std::vector<HostReadyMessage::Part> parts;
  for (const int sender : senders) {
    HostReadyMessage::Part& part = parts.emplace_back();
    for (int rank = sender; rank < topology.size; ++rank) {
      const bool is_there = sender == 0 ? rank == 0 : topology.is_at_or_below(rank, sender);
      if (is_there) part.ranks.push_back(rank);
    }
    for (int i = 0; i < tensors; ++i) part.ready.cached.set(static_cast<std::size_t>(i));
  }
  return parts;
}

/// Handles a message as the control plane does. Returns the number of the decision, if it is made.
std::optional<std::uint64_t> receive(const std::string& bytes, const Topology& topology,
                                     Negotiator& negotiator) {
  const auto message = std::get<HostReadyMessage>(decode(bytes));
  for (const auto& [ranks, ready] : message.parts) {
    for (const int rank : ranks) {
      if (!topology.is_at_or_below(rank, ranks.front())) std::abort();
    }
    negotiator.add(ranks, ready, Clock::now());
  }
  const auto decision = negotiator.decide(false);
  if (!decision || encode(*decision).empty()) return std::nullopt;
  return decision->number;
}

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

  const Topology topology = topology_of(ranks);
  Costs costs;
  for (int step = 0; step < steps; ++step) {
    std::vector<std::string> messages;
    for (HostReadyMessage::Part& part : parts_of_step(topology, tensors)) {
      part.ready.decisions_seen = decided;
      messages.push_back(encode(HostReadyMessage{{std::move(part)}}));
    }
    const auto start = Clock::now();
    double last = 0.0;
    for (const std::string& bytes : messages) {
      const auto begin = Clock::now();
      decided = receive(bytes, topology, negotiator).value_or(decided);
      last = micros_since(begin);
    }
    costs.step.push_back(micros_since(start));
    costs.cycle.push_back(costs.step.back() / static_cast<double>(messages.size()));
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
  std::printf(
      "| ranks | step, us | cycle with a message, us | the last of a step, us | idle, us |\n");
  std::printf("|---|---|---|---|---|\n");
  for (const int ranks : {100, 1'000, 10'000}) {
    Costs costs = measure(ranks, tensors, steps);
    std::printf("| %d | %.1f | %.2f | %.2f | %.3f |\n", ranks, perf::median(costs.step),
                perf::median(costs.cycle), perf::median(costs.deciding), perf::median(costs.idle));
    std::fflush(stdout);
  }
  return 0;
}
