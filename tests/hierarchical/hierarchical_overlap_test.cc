// SPDX-License-Identifier: Apache-2.0
// Several allreduces over hosts in flight: all ranks start them in the same order, and poll them in
// any order.
#include <catch2/catch.hpp>

#include "backends/hierarchical/hierarchical_allreduce.h"
#include "ronde/error.h"
#include "tests/shm/group.h"
#include "tests/support/fakes/memory_hosts.h"
#include "tests/support/ranks/give_way.h"
#include "tests/support/ranks/random_program.h"

namespace ronde::test {
namespace {

using hierarchical::HierarchicalAllreduce;
using hierarchical::Hierarchy;
using Hosts = std::vector<int>;  // by rank

constexpr double kDivisor = 3;

float input_of(int rank, std::size_t number, std::size_t i) {
  return 0.37F * static_cast<float>((i + 1) * (number + 1) % 101) + static_cast<float>(rank) / 3.0F;
}
bool contributes(int rank, std::size_t number) {
  return number % 4 != 1 || rank != 1;
}
bool travels_as_half(std::size_t number) {
  return number % 3 == 2;
}

/// An average, in place, of segments of `counts` floats.
class Average {
 public:
  Average(const std::shared_ptr<Hierarchy>& hierarchy, int rank, std::size_t number,
          const std::vector<std::size_t>& counts) {
    for (const std::size_t count : counts) {
      std::vector<float>& values = values_.emplace_back(count);
      for (std::size_t i = 0; i < count; ++i) values[i] = input_of(rank, number, i);
    }
    for (std::vector<float>& values : values_) {
      const float* const input = contributes(rank, number) ? values.data() : nullptr;
      segments_.push_back({input, values.data(), values.size()});
    }
    AllreduceCall call{.segments = segments_, .final = {.factor = 1, .divisor = kDivisor}};
    if (travels_as_half(number)) call.wire_dtype = DataType::BF16;
    operation_ = std::make_unique<HierarchicalAllreduce>(hierarchy, call);
  }

  HierarchicalAllreduce& operation() { return *operation_; }
  const std::vector<std::vector<float>>& values() const { return values_; }

 private:
  std::vector<std::vector<float>> values_;
  std::vector<Segment> segments_;
  std::unique_ptr<HierarchicalAllreduce> operation_;
};

using Results = std::vector<std::vector<std::vector<float>>>;  // by operation and segment

/// Lists of different lengths, including empty ones and one of more segments than a round may have
/// pieces.
std::vector<std::vector<std::size_t>> lists(Dice& dice) {
  std::vector<std::vector<std::size_t>> lists = {
      {}, {1}, {0, 0}, {3000}, std::vector<std::size_t>(1100, 3), {}, {4097, 1}};
  for (int i = 0; i < 20; ++i) {
    std::vector<std::size_t>& list = lists.emplace_back();
    for (std::uint64_t j = dice.below(4); j > 0; --j) list.push_back(dice.below(700));
  }
  return lists;
}

/// Returns the results of `rank` for all lists. Each step polls an operation that its dice choose.
Results play(const std::shared_ptr<Hierarchy>& hierarchy, int rank, std::size_t in_flight) {
  Dice common(7);
  Dice own(static_cast<std::uint64_t>(rank));
  Results results;
  std::deque<std::pair<std::size_t, std::unique_ptr<Average>>> running;
  std::size_t started = 0;
  const auto all = lists(common);
  results.resize(all.size());
  while (started < all.size() || !running.empty()) {
    if (started < all.size() && running.size() < in_flight) {
      running.emplace_back(started,
                           std::make_unique<Average>(hierarchy, rank, started, all[started]));
      ++started;
      continue;
    }
    const auto one = running.begin() + static_cast<std::ptrdiff_t>(own.below(running.size()));
    if (!one->second->operation().poll()) {
      give_way();
      continue;
    }
    results[one->first] = one->second->values();
    running.erase(one);
  }
  return results;
}

std::vector<Results> results_of_ranks(const Hosts& hosts, std::size_t slots, std::size_t slot_bytes,
                                      std::size_t in_flight) {
  MemoryHosts memory(hosts, slots, slot_bytes);
  std::vector<Results> all(hosts.size());
  run_contexts(hosts, [&](int rank, const BackendContext& context) {
    const auto hierarchy = memory.hierarchy(*context.topology);
    context.exchange({});
    all[static_cast<std::size_t>(rank)] = play(hierarchy, rank, in_flight);
    // Peers may still copy the last messages out of this rank's memory.
    context.exchange({});
  });
  return all;
}

/// The ranks of simulated hosts, on one thread.
struct Ranks {
  explicit Ranks(const Hosts& hosts, std::size_t slots, inproc::MemoryLink link = {})
      : memory(hosts, slots, 4096, link, [this] { return now; }) {
    for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
      topologies.push_back(make_topology(rank, hosts));
    }
    for (const Topology& topology : topologies) {
      fabrics.push_back(memory.network->fabric(topology.rank));
      hierarchies.push_back(memory.hierarchy(topology, fabrics.back()));
    }
  }

  /// Starts averages of `floats` on the ranks [first, end).
  std::deque<Average> start(std::size_t number, std::size_t floats, std::size_t first,
                            std::size_t end) const {
    std::deque<Average> averages;
    for (std::size_t rank = first; rank < end; ++rank) {
      averages.emplace_back(hierarchies[rank], static_cast<int>(rank), number, std::vector{floats});
    }
    return averages;
  }

  std::chrono::steady_clock::time_point now{};
  MemoryHosts memory;
  std::deque<Topology> topologies;
  std::vector<std::shared_ptr<Fabric>> fabrics;
  std::vector<std::shared_ptr<Hierarchy>> hierarchies;
};

/// Polls each up to `times` times; returns whether all have ended.
bool poll_all(std::deque<Average>& averages, int times = 1000) {
  bool have_ended = false;
  for (int i = 0; i < times && !have_ended; ++i) {
    have_ended = true;
    for (Average& one : averages) have_ended = one.operation().poll() && have_ended;
  }
  return have_ended;
}

std::uint64_t messages_of(const Fabric& fabric) {
  return fabric.stats().counters.front().second;
}

TEST_CASE("allreduces over hosts in flight together have the bits of one after the other") {
  const Hosts hosts = GENERATE(Hosts{0, 0, 1, 1}, Hosts{0, 1, 0}, Hosts{0, 1, 2, 0});
  for (const std::size_t slots : {1U, 2U, 5U}) {
    for (const std::size_t slot_bytes : {128U, 4096U}) {
      CAPTURE(hosts, slots, slot_bytes);
      const std::vector<Results> expected = results_of_ranks(hosts, slots, slot_bytes, 1);
      for (const Results& results : expected) CHECK(results == expected.front());
      CHECK(results_of_ranks(hosts, slots, slot_bytes, 2) == expected);
      CHECK(results_of_ranks(hosts, slots, slot_bytes, 4) == expected);
    }
  }
}

TEST_CASE("an allreduce over hosts waits for the one before it, which does not wait for it") {
  const Ranks ranks({0, 0, 0, 1, 1}, 2);
  std::deque<Average> first = ranks.start(0, 10'000, 0, 5);
  std::deque<Average> second = ranks.start(1, 10'000, 0, 5);
  CHECK_FALSE(poll_all(second, 50));
  for (Average& one : second) CHECK(one.operation().progress() == 0);
  CHECK(poll_all(first));
  CHECK(poll_all(second));
  CHECK(first[4].values() == first[0].values());
  CHECK(second[4].values() == second[0].values());
}

TEST_CASE("ranks that have the next allreduce over hosts do not hold up those that have not") {
  for (const std::size_t slots : {1U, 4U}) {
    const Ranks ranks({0, 0, 1, 1}, slots);
    std::deque<Average> first = ranks.start(0, 10'000, 0, 4);
    std::deque<Average> second = ranks.start(1, 10'000, 0, 3);
    bool has_first = false;
    for (int i = 0; i < 1000 && !has_first; ++i) {
      CHECK_FALSE(poll_all(second, 1));
      has_first = poll_all(first, 1);
    }
    CHECK(has_first);
    CHECK_FALSE(poll_all(second, 100));
    second.push_back(std::move(ranks.start(1, 10'000, 3, 4).front()));
    CHECK(poll_all(second));
    CHECK(second[3].values() == second[0].values());
  }
}

TEST_CASE("the next allreduce over hosts sends while the network has the last round of one") {
  Ranks ranks({0, 0, 1, 1}, 4, {.latency = std::chrono::seconds(1)});
  std::deque<Average> first = ranks.start(0, 1000, 0, 4);
  CHECK_FALSE(poll_all(first, 50));
  const std::uint64_t of_first = messages_of(*ranks.fabrics[0]);
  CHECK(of_first > 0);
  std::deque<Average> second = ranks.start(1, 1000, 0, 4);
  CHECK_FALSE(poll_all(second, 50));
  CHECK(messages_of(*ranks.fabrics[0]) == 2 * of_first);
  bool has_first = false;
  bool has_second = false;
  for (int i = 0; i < 10 && !has_first; ++i) {
    ranks.now += std::chrono::seconds(1);
    has_first = poll_all(first, 50);
    has_second = poll_all(second, 50);
  }
  CHECK(has_first);
  CHECK(has_second);  // at the same time
}

TEST_CASE("each of two allreduces over hosts names a rank that is lost, and keeps its memory") {
  for (const bool polls_second_first : {false, true}) {
    Ranks ranks({0, 0, 1, 1}, 4);
    {
      std::deque<Average> first = ranks.start(0, 1000, 0, 3);
      std::deque<Average> second = ranks.start(1, 1000, 0, 3);
      // The last rank of the second host never takes part.
      CHECK_FALSE(poll_all(first, 50));
      CHECK_FALSE(poll_all(second, 50));
      ranks.memory.network->lose(3);
      std::deque<Average>& one = polls_second_first ? second : first;
      std::deque<Average>& other = polls_second_first ? first : second;
      for (std::deque<Average>* averages : {&one, &other}) {
        CHECK(death_of([&] { (*averages)[1].operation().poll(); }).rank == 3);
      }
      for (const auto& fabric : ranks.fabrics) fabric->abort();
    }
    CHECK(ranks.hierarchies[1].use_count() > 1);
    CHECK(ranks.memory.network->take_kept().size() >= 2);
    CHECK(ranks.hierarchies[1].use_count() == 1);
  }
}

}  // namespace
}  // namespace ronde::test
