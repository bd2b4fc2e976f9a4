// SPDX-License-Identifier: Apache-2.0
// Random programs on ranks that are threads of this process, over both backends that can be had so.
#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "backends/shm/shm.h"
#include "tests/support/case_table.h"
#include "tests/support/random_rank.h"
#include "tests/support/random_sets.h"
#include "tests/support/ranks.h"
#include "tests/support/sanitizers.h"

namespace ronde::test {
namespace {

constexpr int kGroups = plain_or_sanitized(10, 4);
constexpr int kRounds = plain_or_sanitized(50, 40);

enum class Backing { Inproc, Shm };

/// The first thing that went wrong: what the other ranks meet follows from it. Thread-safe.
class FirstError {
 public:
  void note(int rank, const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (text_.empty()) text_ = "rank " + std::to_string(rank) + ": " + text;
  }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

RuntimeOptions options_over(Backing backing, const inproc::Group& group, int rank,
                            const Config& config) {
  RuntimeOptions options = options_of(group, rank, config);
  if (backing == Backing::Shm) options.backends = {{"shm", shm_backend_factory()}};
  return options;
}

struct Outcome {
  std::vector<RandomRank> ranks;
  std::vector<std::unique_ptr<RandomSets>> sets;  ///< by rank; outlives the Runtimes as those do
  FirstError error;
  std::atomic<std::uint64_t> freezes{0};  ///< of all ranks
  std::atomic<std::uint64_t> thaws{0};    ///< before the end
  std::atomic<std::uint64_t> symmetric{0};
};

RandomSets::Maker maker_of(Runtime& runtime) {
  return {[&](const std::vector<int>& ranks) { return runtime.add_process_set(ranks); },
          [&](const std::vector<int>& ranks, const std::string& tag) {
            return runtime.create_process_set(ranks, tag);
          },
          [&](ProcessSet set) { runtime.remove_process_set(set); }};
}

void play(Runtime& runtime, RandomRank& player, const RandomRank::Engine& engine,
          std::unique_ptr<RandomSets>& sets, std::uint64_t seed, int ranks) {
  sets =
      std::make_unique<RandomSets>(engine, maker_of(runtime), runtime.topology().rank, ranks, seed);
  sets->play(kRounds / 2, [&] {
    RandomProgram program(seed, ranks);
    for (int round = 0; round < kRounds; ++round) player.play(program.next());
  });
  runtime.shutdown();
}

void run_program(Outcome& outcome, Backing backing, const std::vector<int>& hosts,
                 std::uint64_t seed, const Config& config) {
  const auto ranks = static_cast<int>(hosts.size());
  const inproc::Group group(hosts);
  std::vector<std::unique_ptr<Runtime>> runtimes(static_cast<std::size_t>(ranks));
  std::vector<RandomRank::Engine> engines;
  outcome.sets.resize(runtimes.size());
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& runtime = runtimes[static_cast<std::size_t>(rank)];
    engines.push_back(
        {[&runtime](Request request) { return runtime->submit(std::move(request)); },
         [&runtime](std::vector<Request> some) { return runtime->submit_group(std::move(some)); },
         [&runtime] { return runtime->symmetric_heap(); }, config.join_average == "all"});
    // After a failure operations may still be in progress: their memory outlives the Runtime.
    outcome.ranks.emplace_back(engines.back(), rank, ranks, seed);
  }
  run_ranks(ranks, [&](int rank) {
    auto& runtime = runtimes[static_cast<std::size_t>(rank)];
    try {
      runtime = std::make_unique<Runtime>(options_over(backing, group, rank, config));
      const auto index = static_cast<std::size_t>(rank);
      play(*runtime, outcome.ranks[index], engines[index], outcome.sets[index], seed, ranks);
    } catch (const std::exception& error) {
      outcome.error.note(rank, error.what());
    }
    if (runtime && config.freeze_after_steps > 0 && runtime->topology().hosts() == 1) {
      outcome.freezes += counter_of(*runtime, "schedule", "freezes");
      for (const char* const reason : {"submission", "wait", "time_limit"}) {
        outcome.thaws += counter_of(*runtime, "schedule", std::string("thaws_by_") + reason);
      }
    }
    if (runtime && runtime->symmetric_heap()) {
      outcome.symmetric += counter_of(*runtime, "shm", "symmetric_operations");
    }
    runtime.reset();
  });
}

void check_same_bits(const std::vector<RandomRank>& ranks) {
  const RandomRank& first = ranks.front();
  for (const RandomRank& other : ranks) {
    REQUIRE(other.checksums().size() == first.checksums().size());
    for (std::size_t i = 0; i < first.checksums().size(); ++i) {
      if (other.checksums()[i] == first.checksums()[i]) continue;
      FAIL("not the same bits on every rank: " << first.checksum_text(i));
    }
  }
}

/// How many results of a kind were checked, by RandomRank::reached().
using Reached = std::map<std::string, std::uint64_t>;

/// What no other test does, and no program has done yet; empty: nothing.
std::string not_reached(const Reached& reached) {
  for (const char* const what :
       {"wire dtype", "wire dtype in a group", "wire dtype of joined ranks", "adasum",
        "adasum in a group", "adasum of joined ranks", "message"}) {
    if (!reached.contains(what)) return what;
  }
  return {};
}

void check_programs(Backing backing, const std::vector<int>& hosts, std::uint64_t usual_seed) {
  const TestSeed seed = test_seed(usual_seed);
  Dice dice(seed.value);
  std::uint64_t freezes = 0;
  std::uint64_t thaws = 0;
  std::uint64_t symmetric = 0;
  Reached reached;
  // Ranks of several hosts never freeze. Sanitized programs look at accesses, not at reach.
  const bool may_freeze = std::ranges::count(hosts, 0) == std::ssize(hosts);
  const auto is_enough = [&] {
    const bool froze = freezes >= kGroups && thaws >= kGroups / 4;
    return (froze || !may_freeze) && (kIsSanitized || not_reached(reached).empty());
  };
  // Some seeds need more programs than others to reach everything.
  const int most = seed.is_usual ? 3 * kGroups : kGroups;
  for (int group = 0; group < kGroups || (group < most && !is_enough()); ++group) {
    const Config config = random_settings(dice, test_config());
    const std::uint64_t program = dice.number();
    Outcome outcome;
    run_program(outcome, backing, hosts, program, config);
    INFO(seed.text() << ", group " << group << "\n" << group_wide_fingerprint(config));
    REQUIRE(outcome.error.text() == "");
    check_same_bits(outcome.ranks);
    freezes += outcome.freezes;
    thaws += outcome.thaws;
    symmetric += outcome.symmetric;
    for (const RandomRank& rank : outcome.ranks) {
      for (const auto& [what, count] : rank.reached()) reached[what] += count;
    }
  }
  CHECK((symmetric > 0) == (backing == Backing::Shm));
  if (!seed.is_usual) return;
  if (!kIsSanitized) CHECK(not_reached(reached) == "");
  if (!may_freeze) return;
  CHECK(freezes >= kGroups);
  CHECK(thaws >= kGroups / 4);
}

[[maybe_unused]] const bool kRegistered = [] {
  // Seeds that freeze often enough even in the few programs of sanitized copies.
  std::uint64_t seed = 11;
  for (const auto& [name, backing] :
       {std::pair("inproc", Backing::Inproc), std::pair("shm", Backing::Shm)}) {
    for (const std::size_t ranks : {2, 3, 4}) {
      add_case("random programs of " + std::to_string(ranks) + " threads over " + name, "",
               [=, backing = backing, seed = seed++] {
                 check_programs(backing, std::vector<int>(ranks), seed);
               });
    }
  }
  for (const std::vector<int>& hosts :
       std::vector<std::vector<int>>{{0, 1, 1, 0}, {0, 1, 1, 1}, {0, 1, 1, 2}}) {
    std::string name;
    for (const int host : hosts) name += std::to_string(host);
    add_case("random programs of threads on hosts " + name + " over inproc", "",
             [hosts, seed = seed++] { check_programs(Backing::Inproc, hosts, seed); });
  }
  return true;
}();

}  // namespace
}  // namespace ronde::test
