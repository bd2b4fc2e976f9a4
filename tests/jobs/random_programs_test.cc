// SPDX-License-Identifier: Apache-2.0
// Random programs on ranks that are processes, over every backend between them.
#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ronde/ronde.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/oracle/plain_mpi.h"
#include "tests/support/ranks/random_rank.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {
namespace {

constexpr int kRounds = 50;

/// Rank 0's.
TestSeed common_seed(PlainMpi& mpi, std::uint64_t usual) {
  TestSeed seed = mpi.rank() == 0 ? test_seed(usual) : TestSeed();
  const std::vector<std::int64_t> all = mpi.gather(
      std::vector<std::int64_t>{static_cast<std::int64_t>(seed.value), seed.is_usual ? 1 : 0});
  return {static_cast<std::uint64_t>(all[0]), all[1] != 0};
}

Variables variables_of(const Config& config) {
  return {{"RONDE_FUSION_BYTES", std::to_string(config.fusion_bytes)},
          {"RONDE_CACHE_CAPACITY", std::to_string(config.cache_capacity)},
          {"RONDE_FREEZE_AFTER_STEPS", std::to_string(config.freeze_after_steps)},
          {"RONDE_CYCLE_TIME_MS", std::to_string(config.cycle_time_ms)},
          {"RONDE_VERIFY", config.verify ? "1" : "0"},
          {"RONDE_JOIN_AVERAGE", config.join_average},
          {"RONDE_ALLREDUCE", config.allreduce},
          {"RONDE_BROADCAST", config.broadcast},
          {"RONDE_ALLGATHER", config.allgather},
          {"RONDE_REDUCESCATTER", config.reducescatter},
          {"RONDE_ALLTOALL", config.alltoall},
          {"RONDE_STALL_WARN_S", "0"},
          {"RONDE_STALL_ABORT_S", "0"}};
}

void check_same_bits(PlainMpi& mpi, const RandomRank& player) {
  const std::vector<std::int64_t>& own = player.checksums();
  const std::vector<std::int64_t> all = mpi.gather(own);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] == own[i % own.size()]) continue;
    FAIL("not the same bits on every rank: " << player.checksum_text(i % own.size()));
  }
}

/// with_group, or with_hosts on some.
using WithRanks =
    std::function<void(const std::function<void(PlainMpi& mpi)>& body, const Variables& variables)>;

/// `groups` of ranks, one after the other, each with a program of its own. On one host some of them
/// run from frozen schedules for a while.
void check_programs(std::uint64_t usual_seed, int groups, int hosts, const WithRanks& with_ranks) {
  PlainMpi& mpi = PlainMpi::instance();
  const TestSeed seed = common_seed(mpi, usual_seed);
  Dice dice(seed.value);
  std::uint64_t freezes = 0;
  std::uint64_t thaws = 0;
  for (int group = 0; group < groups; ++group) {
    Config config = random_settings(dice, Config());
    const std::uint64_t program_seed = dice.number();
    if (hosts > 1) config = with_random_algorithms(program_seed, config);
    INFO(seed.text() << ", group " << group << "\n" << group_wide_fingerprint(config));
    const RandomRank::Engine engine = {[]() -> Runtime& { return ronde::default_runtime(); },
                                       config.join_average == "all", hosts};
    with_ranks(
        [&](PlainMpi&) {
          auto programs =
              std::make_unique<RandomPrograms>(engine, mpi.rank(), mpi.size(), program_seed);
          try {
            programs->play(kRounds);
          } catch (...) {
            // Operations may still be in progress, so that their memory stays for good.
            static_cast<void>(programs.release());
            throw;
          }
          check_same_bits(mpi, programs->of_all());
          if (hosts > 1 || config.freeze_after_steps == 0) return;
          freezes += counter_of(default_runtime(), "schedule", "freezes");
          thaws += counter_of(default_runtime(), "schedule", "thaws");
          mpi.barrier();  // a shutdown thaws as well
        },
        variables_of(config));
  }
  if (hosts > 1 || !seed.is_usual) return;
  CHECK(freezes > 0);
  CHECK(thaws > 0);
}

void check_programs_on(const std::string& hosts, std::uint64_t seed, const std::string& fabric) {
  if (fabric == "ucx" && !has_feature("ucx")) {
    std::cout << "left out: random programs over ucx: this build has none\n";
    return;
  }
  const std::set<char> names(hosts.begin(), hosts.end());
  check_programs(seed, 10, static_cast<int>(names.size()),
                 [&](const auto& body, Variables variables) {
                   variables.emplace_back("RONDE_FABRIC", fabric);
                   with_hosts(
                       hosts,
                       [&](PlainMpi& mpi) {
                         const char own = hosts.at(static_cast<std::size_t>(mpi.rank()));
                         CHECK(ronde::local_size() == std::ranges::count(hosts, own));
                         body(mpi);
                         CHECK_THAT(ronde::stats(), Catch::Contains("fabric_sent_bytes"));
                       },
                       variables);
                 });
}

[[maybe_unused]] const bool kRegistered = [] {
  std::uint64_t seed = 1;
  for (const std::string backend : {"shm", "mpi", "fabric"}) {
    add_case("random programs over " + backend, "[n2][n3][n4]", [backend, seed = seed++] {
      check_programs(seed, 20, 1, [&](const auto& body, Variables variables) {
        variables.emplace_back("RONDE_CPU_BACKEND", backend);
        with_group(body, variables);
      });
    });
  }
  for (const std::string hosts : {"abb", "aab", "aabb", "abbb", "abca"}) {
    add_case("random programs on the hosts " + hosts, "[n" + std::to_string(hosts.size()) + "]",
             [hosts, seed = seed++] { check_programs_on(hosts, seed, "mpi"); });
  }
  for (const std::string hosts : {"abb", "abca"}) {
    add_case("random programs on the hosts " + hosts + " over ucx",
             "[n" + std::to_string(hosts.size()) + "]",
             [hosts, seed = seed++] { check_programs_on(hosts, seed, "ucx"); });
  }
  return true;
}();

}  // namespace
}  // namespace ronde::test
