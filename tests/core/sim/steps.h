// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ronde/error.h"
#include "ronde/simulation.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {

inline constexpr int kTensors = 5;

/// All tensors of a step are submitted before any is announced, and fit into one bucket.
inline Config config_of_steps() {
  Config config = test_config();
  config.cycle_time_ms = 10'000;
  return config;
}

inline std::vector<int> hosts(int count, int ranks_of_each) {
  std::vector<int> host_of;
  for (int i = 0; i < count * ranks_of_each; ++i) host_of.push_back(i / ranks_of_each);
  return host_of;
}

inline Request request_of(int tensor) {
  Request request;
  request.name = "t" + std::to_string(tensor);
  request.shape = {100 + tensor};
  return request;
}

/// What a rank was told at last.
struct End {
  std::string text;
  int failed_rank = -1;
};

inline End end_of(const std::exception_ptr& error) {
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const GroupError& failure) {
    return {failure.what(), failure.failed_rank()};
  } catch (const std::exception& other) {
    return {other.what()};
  }
}

/// Every rank repeats steps of kTensors allreduces and shuts down, unless an operation fails.
class Steps {
 public:
  Steps(std::vector<int> host_of, int steps, const Config& config = config_of_steps(),
        int most_leaders_below = kMostLeadersBelow)
      : steps_(steps), ranks_(host_of.size()) {
    SimulationOptions options;
    options.config = config;
    options.host_of = std::move(host_of);
    options.most_leaders_below = most_leaders_below;
    options.on_message = [this](const SimulatedMessage& message) { messages.push_back(message); };
    options.on_started = [this](int rank) { compute(rank); };
    options.on_stall = [this](int rank, const std::vector<StalledOperation>& stalled) {
      told_of_stall.insert(rank);
      stalls.insert(stalls.end(), stalled.begin(), stalled.end());
    };
    simulation.emplace(std::move(options));
  }

  /// `rank` calls `action` in place of its submissions of a step.
  void deviate(int rank, int step, std::function<void()> action) {
    deviation_ = {rank, step, std::move(action)};
  }

  /// The submissions of a step.
  void submit(int rank) {
    of(rank).left = kTensors;
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      simulation->submit(rank, request_of(tensor),
                         [this, rank](std::exception_ptr error) { finish(rank, error); });
    }
    simulation->wait(rank);
  }

  int step_of(int rank) { return of(rank).step; }
  const End& end(int rank) { return of(rank).end; }
  std::uint64_t counter(int rank, const std::string& part, const std::string& name) const {
    for (const StatsGroup& group : simulation->stats(rank)) {
      if (group.part == part) return counter_of(group, name);
    }
    throw CheckFailed("no part " + part);
  }

  void kill(int rank) {
    killed_.insert(rank);
    simulation->kill(rank);
  }

  /// How long a rank computes before a step; empty: no time.
  std::function<Simulation::Time()> pause;
  std::vector<SimulatedMessage> messages;
  std::set<int> told_of_stall;
  std::vector<StalledOperation> stalls;
  std::optional<Simulation> simulation;

 private:
  struct Rank {
    int step = 0;
    int left = 0;
    End end;
  };
  struct Deviation {
    int rank = -1;
    int step = 0;
    std::function<void()> action;
  };

  Rank& of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  void compute(int rank) {
    if (!pause) return begin_step(rank);
    simulation->at(simulation->now() + pause(), [this, rank] {
      if (!killed_.contains(rank)) begin_step(rank);
    });
  }

  void begin_step(int rank) {
    if (of(rank).step == steps_) return simulation->shut_down(rank);
    if (rank == deviation_.rank && of(rank).step == deviation_.step) return deviation_.action();
    try {
      submit(rank);
    } catch (const GroupError&) {  // the group has failed meanwhile
      of(rank).end = end_of(std::current_exception());
    }
  }

  void finish(int rank, const std::exception_ptr& error) {
    if (error) of(rank).end = end_of(error);
    if (--of(rank).left > 0 || error) return;
    ++of(rank).step;
    simulation->mark_step(rank);
    compute(rank);
  }

  const int steps_;
  std::vector<Rank> ranks_;
  Deviation deviation_;
  std::set<int> killed_;
};

}  // namespace ronde::test
