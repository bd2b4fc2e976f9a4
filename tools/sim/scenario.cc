// SPDX-License-Identifier: Apache-2.0
#include "tools/sim/scenario.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ronde/error.h"

namespace ronde::tool {
namespace {

using Time = Simulation::Time;

double ms_of(Time time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

Time time_of(double us) {
  return Time(std::llround(us * 1e3));
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014).
std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

std::string text_of(const std::exception_ptr& error) try {
  std::rethrow_exception(error);
} catch (const std::exception& known) {
  return known.what();
}

/// One direction of the link of a host.
struct Traffic {
  double messages = 0, bytes = 0;
};

/// All so far.
struct Snapshot {
  Time at{0}, engine{0}, exposed{0};
  std::vector<Traffic> links;  ///< out and in, of each host
};

/// Plays the programs of all ranks.
class Play {
 public:
  Play(const Scenario& scenario, const Program& program)
      : scenario_(scenario),
        program_(program),
        ranks_(scenario.group.host_of.size()),
        ended_(static_cast<std::size_t>(scenario.steps)),
        links_(2 * static_cast<std::size_t>(scenario.group.host_of.back() + 1)),
        simulation_(options()) {
    outcome_.marks.resize(scenario.keeps_messages ? ranks_.size() : 0);
  }

  Outcome run() && {
    simulation_.run();
    measure();
    return std::move(outcome_);
  }

 private:
  struct Rank {
    int step = -1;
    double factor = 1;
    std::size_t next = 0;  ///< of Program::actions
    std::size_t in_flight = 0;
    std::vector<bool> done = {};  ///< by operation
    bool waits = false;           ///< in the action before `next`
    Time waits_since{0};
    bool has_failed = false;
  };

  SimulationOptions options() {
    SimulationOptions options = scenario_.group;
    options.on_message = [this](const SimulatedMessage& message) { count(message); };
    options.on_started = [this](int rank) {
      if (++started_ == ranks_.size()) take_snapshot();
      begin_step(rank);
    };
    return options;
  }

  Rank& of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  void after(double us, int rank, void (Play::*then)(int)) {
    simulation_.at(simulation_.now() + time_of(us * of(rank).factor), [this, rank, then] {
      if (!of(rank).has_failed) (this->*then)(rank);
    });
  }

  void begin_step(int number) {
    Rank& rank = of(number);
    ++rank.step;
    const auto step = static_cast<std::uint64_t>(rank.step);
    const std::uint64_t place = (static_cast<std::uint64_t>(number) << 32U) + step;
    rank.factor = program_.factors[mixed(mixed(scenario_.seed) + place) % program_.factors.size()];
    if (const auto slow = scenario_.slow.find(number); slow != scenario_.slow.end()) {
      rank.factor *= slow->second;
    }
    rank.next = 0;
    rank.done.assign(program_.operations.size(), false);
    if (rank.step + 1 == scenario_.steps) {
      if (!last_step_begun_) last_step_begun_ = simulation_.now();
    }
    const auto& killed = scenario_.kill;
    if (killed && killed->rank == number && killed->step == rank.step) {
      after(program_.compute_us() / 2, number, &Play::kill);
    }
    mark(number, false);
    proceed(number);
  }

  void proceed(int number) {
    const Rank& rank = of(number);
    if (rank.next == program_.actions.size()) {
      return after(program_.rest_us, number, &Play::end_step);
    }
    after(program_.actions[rank.next].after_us, number, &Play::act);
  }

  void act(int number) {
    const Program::Action& action = program_.actions[of(number).next++];
    mark(number, false);
    if (action.act != Program::Act::Submit) return wait(number);
    submit(number, action.operation);
    if (!of(number).has_failed) proceed(number);
  }

  void submit(int rank, std::size_t index) {
    const Program::Operation& operation = program_.operations[index];
    Request request;
    request.kind = operation.kind;
    request.name = operation.name;
    const bool is_whole = operation.bytes % size_of(DataType::F32) == 0;
    request.dtype = is_whole ? DataType::F32 : DataType::U8;
    request.shape = {static_cast<std::int64_t>(operation.bytes / size_of(request.dtype))};
    if (is_whole && operation.kind == Collective::Allreduce) {
      request.wire_dtype = scenario_.wire_dtype;
    }
    ++of(rank).in_flight;
    try {
      // What it captures fits into the function itself, as there is one for each operation.
      simulation_.submit(rank, std::move(request),
                         [this, rank, place = static_cast<std::uint32_t>(index)](
                             const std::exception_ptr& error) { on_done(rank, place, error); });
    } catch (const GroupError&) {
      on_error(rank, std::current_exception());
    }
  }

  void wait(int number) {
    Rank& rank = of(number);
    if (is_over(number)) return end_wait(number);
    rank.waits = true;
    rank.waits_since = simulation_.now();
    simulation_.wait(number);
  }

  void end_wait(int number) {
    mark(number, true);
    proceed(number);
  }

  void mark(int number, bool has_waited) {
    if (!scenario_.keeps_messages || of(number).step + 1 < scenario_.steps) return;
    outcome_.marks[static_cast<std::size_t>(number)].push_back({simulation_.now(), has_waited});
  }

  void on_done(int number, std::size_t operation, const std::exception_ptr& error) {
    Rank& rank = of(number);
    if (rank.has_failed) return;
    if (error) return on_error(number, error);
    --rank.in_flight;
    rank.done[operation] = true;
    if (!rank.waits || !is_over(number)) return;
    rank.waits = false;
    exposed_ += simulation_.now() - rank.waits_since;
    end_wait(number);
  }

  /// Returns whether the wait before the next action is.
  bool is_over(int number) const {
    const Rank& rank = ranks_[static_cast<std::size_t>(number)];
    const Program::Action& action = program_.actions[rank.next - 1];
    return action.act == Program::Act::Wait ? rank.done[action.operation] : rank.in_flight == 0;
  }

  void end_step(int number) {
    simulation_.mark_step(number);
    const auto step = static_cast<std::size_t>(of(number).step);
    const bool was_last = step + 1 == ended_.size();
    mark(number, false);
    if (++ended_[step] == ranks_.size()) take_snapshot();
    if (!was_last) return begin_step(number);
    if (ended_[step] < ranks_.size()) return;
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) simulation_.shut_down(rank);
  }

  void kill(int rank) {
    killed_ = simulation_.now();
    of(rank).has_failed = true;
    simulation_.kill(rank);
  }

  void on_error(int number, const std::exception_ptr& error) {
    if (!killed_) throw Error("the simulated group has failed: " + text_of(error));
    of(number).has_failed = true;
    outcome_.last_told_ms = ms_of(simulation_.now() - *killed_);
    if (outcome_.told.empty()) {
      outcome_.first_told_ms = outcome_.last_told_ms;
      outcome_.told = text_of(error);
    }
    simulation_.shut_down(number);
  }

  void count(const SimulatedMessage& message) {
    if (last_step_begun_ && message.sent >= *last_step_begun_ && scenario_.keeps_messages &&
        ended_.back() < ranks_.size()) {
      outcome_.messages.push_back(message);
    }
    const auto host_of = [&](int rank) {
      return static_cast<std::size_t>(scenario_.group.host_of[static_cast<std::size_t>(rank)]);
    };
    const std::size_t from = host_of(message.from), to = host_of(message.to);
    if (from == to) return;
    for (const std::size_t link : {2 * from, 2 * to + 1}) {
      ++links_[link].messages;
      links_[link].bytes += static_cast<double>(message.bytes);
    }
  }

  void take_snapshot() {
    snapshots_.push_back({simulation_.now(), simulation_.engine_time(0), exposed_, links_});
  }
  void measure() {
    if (snapshots_.size() < 2) return;
    const std::size_t first = std::min(ended_.size() / 4, snapshots_.size() - 2);
    const Snapshot &begin = snapshots_[first], &end = snapshots_.back();
    std::vector<double> times_ms;
    for (std::size_t i = first + 1; i < snapshots_.size(); ++i) {
      times_ms.push_back(ms_of(snapshots_[i].at - snapshots_[i - 1].at));
    }
    const auto steps = static_cast<double>(times_ms.size());
    std::ranges::nth_element(times_ms, times_ms.begin() + static_cast<long>(times_ms.size() / 2));
    outcome_.step_ms = times_ms[times_ms.size() / 2];
    const Time all = (end.at - begin.at) * static_cast<std::int64_t>(ranks_.size());
    outcome_.exposed_ms = outcome_.step_ms * ms_of(end.exposed - begin.exposed) / ms_of(all);
    outcome_.engine_us = 1e3 * ms_of(end.engine - begin.engine) / steps;
    outcome_.link_messages = outcome_.link_bytes = 0;
    for (std::size_t link = 0; link < links_.size(); ++link) {
      const double bytes = (end.links[link].bytes - begin.links[link].bytes) / steps;
      if (bytes <= outcome_.link_bytes) continue;
      outcome_.link_bytes = bytes;
      outcome_.link_messages = (end.links[link].messages - begin.links[link].messages) / steps;
    }
  }

  const Scenario& scenario_;
  const Program& program_;
  std::vector<Rank> ranks_;
  std::size_t started_ = 0;         ///< ranks
  std::vector<std::size_t> ended_;  ///< of each step: ranks that have ended it
  Time exposed_{0};
  std::vector<Traffic> links_;
  std::vector<Snapshot> snapshots_;      ///< at the start, and the end of each step
  std::optional<Time> last_step_begun_;  ///< on any rank
  std::optional<Time> killed_;
  Outcome outcome_;
  Simulation simulation_;
};

}  // namespace

Outcome simulate(const Scenario& scenario, const Program& program) {
  return Play(scenario, program).run();
}

}  // namespace ronde::tool
