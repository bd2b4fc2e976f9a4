// SPDX-License-Identifier: Apache-2.0
// Random programs on ranks that are threads of this process, over backends that can be had so.
#include "backends/shm/shm.h"
#include "ronde/plugin/fabric_backend.h"
#include "tests/support/fakes/overlapping_backend.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/harness/sanitizers.h"
#include "tests/support/inproc/memory_network.h"
#include "tests/support/ranks/random_rank.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {
namespace {

constexpr int kGroups = plain_or_sanitized(10, 4);
constexpr int kRounds = plain_or_sanitized(50, 40);

enum class Backing { Inproc, Overlapping, Shm, Fabric };

using Counter = std::shared_ptr<std::atomic<std::uint64_t>>;

/// `network`: of the group.
RuntimeOptions options_over(Backing backing, const inproc::Group& group,
                            const std::shared_ptr<inproc::MemoryNetwork>& network, int rank,
                            const Config& config, const Counter& overtakings) {
  RuntimeOptions options = options_of(group, rank, config);
  if (backing == Backing::Overlapping) {
    // Ranks differ in what ends first.
    options.backends = {
        {"inproc", overlapping_factory(group.backend_factory(), static_cast<std::uint64_t>(rank),
                                       overtakings)}};
  }
  if (backing == Backing::Shm) options.backends = {{"shm", shm_backend_factory()}};
  if (backing == Backing::Fabric) {
    const auto fabric = std::make_shared<SharedFabric>(
        [network, rank](BackendContext&) { return network->fabric(rank); });
    options.backends = {
        {"fabric", fabric_backend_factory(fabric, {.algorithms = algorithm_table(config)})}};
  }
  return options;
}

struct Outcome {
  /// By rank. They outlive the Runtimes: after a failure operations may still be in progress.
  std::vector<std::unique_ptr<RandomPrograms>> ranks;
  std::atomic<std::uint64_t> freezes{0};  ///< of all ranks
  std::atomic<std::uint64_t> thaws{0};    ///< before the end
  std::atomic<std::uint64_t> symmetric{0};
  Counter overtakings = std::make_shared<std::atomic<std::uint64_t>>(0);
};

void count(Outcome& outcome, const Runtime& runtime, const Config& config) {
  if (config.freeze_after_steps > 0 && runtime.topology().hosts() == 1) {
    outcome.freezes += counter_of(runtime, "schedule", "freezes");
    for (const char* const reason : {"submission", "wait", "time_limit"}) {
      outcome.thaws += counter_of(runtime, "schedule", std::string("thaws_by_") + reason);
    }
  }
  if (runtime.symmetric_heap()) {
    outcome.symmetric += counter_of(runtime, "shm", "symmetric_operations");
  }
}

/// Throws the first error of a rank: what the other ones meet follows from it.
void run_program(Outcome& outcome, Backing backing, const std::vector<int>& hosts,
                 std::uint64_t seed, const Config& config) {
  const auto size = static_cast<int>(hosts.size());
  const inproc::Group group(hosts);
  const auto network = std::make_shared<inproc::MemoryNetwork>(size);
  ThreadErrors errors;
  outcome.ranks.resize(hosts.size());
  run_ranks(size, [&](int rank) {
    std::unique_ptr<Runtime> runtime;  // ends after its error is kept
    errors.catch_from([&] {
      runtime = std::make_unique<Runtime>(
          options_over(backing, group, network, rank, config, outcome.overtakings));
      auto& own = outcome.ranks[static_cast<std::size_t>(rank)];
      const RandomRank::Engine engine = {[&runtime]() -> Runtime& { return *runtime; },
                                         config.join_average == "all"};
      own = std::make_unique<RandomPrograms>(engine, rank, size, seed);
      own->play(kRounds);
      runtime->shutdown();
      count(outcome, *runtime, config);
    });
  });
  errors.rethrow();
}

void check_same_bits(const Outcome& outcome) {
  const RandomRank& first = outcome.ranks.front()->of_all();
  for (const auto& rank : outcome.ranks) {
    const RandomRank& other = rank->of_all();
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
  std::uint64_t freezes = 0, thaws = 0, symmetric = 0, overtakings = 0;
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
    Config config = random_settings(dice, test_config());
    const std::uint64_t program = dice.number();
    if (backing == Backing::Fabric) config = with_random_algorithms(program, config);
    Outcome outcome;
    INFO(seed.text() << ", group " << group << "\n" << group_wide_fingerprint(config));
    run_program(outcome, backing, hosts, program, config);
    check_same_bits(outcome);
    freezes += outcome.freezes;
    thaws += outcome.thaws;
    symmetric += outcome.symmetric;
    overtakings += *outcome.overtakings;
    for (const auto& rank : outcome.ranks) {
      for (const auto& [what, times] : rank->of_all().reached()) reached[what] += times;
    }
  }
  CHECK((symmetric > 0) == (backing == Backing::Shm));
  CHECK((overtakings > 0) == (backing == Backing::Overlapping));
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
    add_case("random programs of threads on hosts " + name + " over a fabric", "",
             [hosts, seed = seed++] { check_programs(Backing::Fabric, hosts, seed); });
  }
  for (const std::size_t ranks : {2, 3}) {
    add_case("random programs of " + std::to_string(ranks) + " threads, operations overlap", "",
             [=, seed = seed++] {
               check_programs(Backing::Overlapping, std::vector<int>(ranks), seed);
             });
  }
  return true;
}();

}  // namespace
}  // namespace ronde::test
