// SPDX-License-Identifier: Apache-2.0
// Ranks that are killed at random moments of random programs, over each transport. By hand
// RONDE_TEST_SEEDS says how many kills over each, and RONDE_TEST_SEED the first one's seed.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ronde/ronde.h"
#include "tests/jobs/failures/job.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/processes/beside.h"
#include "tests/support/processes/reserved_port.h"
#include "tests/support/ranks/random_program.h"

namespace ronde::test {
namespace {

struct Transport {
  std::string name;
  std::string backend;
  std::string fabric;
  bool has_hosts = false;
  bool needs_mpi = false;
};

// In s.
constexpr int kInitTimeout = 20;
constexpr double kLongestInit = kInitTimeout + 5.0;  ///< where MPI_Init hangs

/// The hosts of 3 ranks, and of 4.
const std::vector<std::string> kHosts[] = {{"aab", "abb", "aba"}, {"aabb", "abab", "abbb", "abca"}};

struct Kill {
  JobSpec spec;
  int victim;
  std::string moment;
  std::unique_ptr<ReservedPort> port = {};  ///< where no MPI starts the ranks
};

Kill random_kill(const Transport& transport, std::uint64_t seed) {
  Dice dice(seed);
  const Config config = random_settings(dice, Config());
  const std::size_t ranks = transport.has_hosts ? 3 + dice.below(2) : 2 + dice.below(3);
  const std::size_t moment = dice.below(10);
  Kill kill = {{},
               static_cast<int>(dice.below(ranks)),
               moment == 0   ? "in init"
               : moment == 1 ? "in shutdown"
                             : "at work"};
  kill.spec.ranks = static_cast<int>(ranks);
  kill.spec.deadline = std::chrono::seconds(90);
  kill.spec.program = {RONDE_TEST_KILLED};
  const std::size_t delay = dice.below(kill.moment == "in shutdown" ? 5'000 : 300'000);
  kill.spec.arguments = {
      std::to_string(kill.victim), kill.moment, std::to_string(delay), std::to_string(seed),
      transport.has_hosts ? dice.among(kHosts[ranks - 3]) : std::string(ranks, 'a')};
  kill.spec.variables = {{"RONDE_CPU_BACKEND", transport.backend},
                         {"RONDE_FABRIC", transport.fabric},
                         {"RONDE_INIT_TIMEOUT_S", std::to_string(kInitTimeout)},
                         {"RONDE_FUSION_BYTES", std::to_string(config.fusion_bytes)},
                         {"RONDE_CACHE_CAPACITY", std::to_string(config.cache_capacity)},
                         {"RONDE_FREEZE_AFTER_STEPS", std::to_string(config.freeze_after_steps)},
                         {"RONDE_VERIFY", config.verify ? "1" : "0"},
                         {"RONDE_CYCLE_TIME_MS", std::to_string(config.cycle_time_ms)}};
  if (!transport.needs_mpi && dice.one_in(2)) {
    kill.port = std::make_unique<ReservedPort>();
    kill.spec.launcher = RONDE_TEST_WITHOUT_MPI;
    kill.spec.variables.emplace_back("RONDE_PORT", std::to_string(kill.port->number()));
  }
  return kill;
}

/// What became of the survivors of all kills over a transport.
struct Tally {
  std::map<std::string, int> kills = {};  ///< by verdict
  std::vector<double> told_s = {};        ///< of each kill, the last survivor that was told
  double late_s = 0.0;                    ///< the longest that one waited for a limit
  int hangs = 0;
  int leftovers = 0;
  int of_libraries = 0;  ///< kills that left files of MPICH or UCX alone
};

/// What one survivor's report shows. "late": docs/failures.md says who is told by a limit alone.
std::string verdict(const Kill& kill, const nlohmann::json& report) {
  if (report["threw"] == "nothing" && kill.moment == "in shutdown") return "unharmed";
  if (report["threw"] != "GroupError") return "wrong";
  const std::string text = report["text"].get<std::string>();
  const auto says = [&](const std::string& words) { return text.find(words) != std::string::npos; };
  const bool is_named = report["failed_rank"] == kill.victim;
  if (!is_named && report["failed_rank"] != -1) return "wrong";
  if (kill.moment == "in init" &&
      (says("RONDE_INIT_TIMEOUT_S") || says(" " + std::to_string(kInitTimeout) + " s"))) {
    return "late";
  }
  return is_named && says("rank " + std::to_string(kill.victim) + " ") ? "told" : "wrong";
}

void check_leftovers(const JobResult& result, Tally& tally) {
  tally.of_libraries += result.libraries_left_files ? 1 : 0;
  for (const auto* const left :
       {&result.left_processes, &result.left_in_dev_shm, &result.left_memory}) {
    CHECK(*left == std::vector<std::string>());
    if (!left->empty()) ++tally.leftovers;
  }
}

void check_kill(const Kill& kill, double longest, Tally& tally) {
  const JobResult result = run_job(kill.spec);
  CAPTURE(kill.victim, kill.moment, kill.spec.arguments, kill.spec.launcher, result.output);
  CHECK_FALSE(result.timed_out);
  tally.hangs += result.timed_out ? 1 : 0;
  check_leftovers(result, tally);
  // Hydra ends by an assertion, and all ranks with it, where one dies in MPI_Init or MPI_Finalize.
  const bool by_launcher =
      kill.moment != "at work" && result.output.find("[mpiexec@") != std::string::npos;
  std::set<std::string> verdicts;
  double last_s = 0.0;
  for (int rank = 0; rank < kill.spec.ranks; ++rank) {
    if (rank == kill.victim) continue;
    CAPTURE(rank);
    CHECK((by_launcher || result.reports.contains(rank)));
    if (!result.reports.contains(rank)) continue;
    const nlohmann::json& report = result.reports.at(rank);
    CAPTURE(report.dump(2));
    const std::string got = verdict(kill, report);
    CHECK(got != "wrong");
    verdicts.insert(got);
    if (got == "unharmed" || !report.contains("after_s")) continue;
    const double after_s = report["after_s"].get<double>();
    if (got == "late") tally.late_s = std::max(tally.late_s, after_s);
    CHECK(after_s < longest + (got == "told" ? 0.0 : kLongestInit));
    if (got == "told") last_s = std::max(last_s, after_s);
  }
  if (last_s > 0.0) tally.told_s.push_back(last_s);
  for (const std::string& got : verdicts) ++tally.kills[got];
  if (by_launcher) ++tally.kills["ended by mpiexec"];
}

Kill kill_at(const Transport& transport, const std::string& moment, bool is_first) {
  Kill kill = random_kill(transport, 1);
  kill.victim = is_first ? 0 : kill.spec.ranks - 1;
  kill.moment = moment;
  kill.spec.arguments[0] = std::to_string(kill.victim);
  kill.spec.arguments[1] = moment;
  return kill;
}

/// Its connections stay open, so that nothing but the limit tells.
void check_stop_in_finalize(const Transport& transport) {
  Kill kill = kill_at(transport, "stopped in MPI_Finalize", false);
  kill.spec.stopped_rank = kill.victim;
  const JobResult result = run_job(kill.spec);
  CAPTURE(result.output);
  CHECK_FALSE(result.timed_out);
  CHECK(static_cast<int>(result.reports.size()) == kill.spec.ranks - 1);
  for (const auto& [rank, report] : result.reports) {
    CAPTURE(rank, report.dump(2));
    CHECK(report["threw"] == "GroupError");
    CHECK(report["failed_rank"] == -1);
    CHECK(report["text"].get<std::string>().starts_with(
        "shutdown() did not end in time: the transport does not close"));
  }
}

/// Rank 0, from which all others hear, and the last one.
void check_deaths_in_finalize(const Transport& transport) {
  Tally tally;
  for (const bool is_first : {true, false}) {
    check_kill(kill_at(transport, "in MPI_Finalize", is_first), 20.0, tally);
  }
  CHECK((!tally.told_s.empty() || tally.kills["ended by mpiexec"] == 2));
}

void check_kills(const Transport& transport) {
  if (transport.fabric == "ucx" && !has_feature("ucx")) return;
  const char* const text = std::getenv("RONDE_TEST_SEEDS");
  const unsigned long kills = text == nullptr ? 4 : std::stoul(text);
  // The short form runs beside other tests.
  const double longest = text == nullptr ? 20.0 : 2.0;
  Tally tally;
  const TestSeed first = test_seed(1);
  for (unsigned long i = 0; i < kills; ++i) {
    INFO("RONDE_TEST_SEEDS=1 RONDE_TEST_SEED=" << first.value + i);
    check_kill(random_kill(transport, first.value + i), longest, tally);
  }
  std::vector<double>& told = tally.told_s;
  std::ranges::sort(told);
  const auto quantile = [&](double share) {
    const auto place = static_cast<double>(told.size()) * share;
    return told.empty() ? 0.0 : told[static_cast<std::size_t>(place)];
  };
  std::printf("%s: %lu kills from seed %llu", transport.name.c_str(), kills,
              static_cast<unsigned long long>(first.value));
  for (const auto& [got, number] : tally.kills) std::printf(", %d %s", number, got.c_str());
  std::printf(
      "; median %.3f s, p99 %.3f s, most %.3f s, late %.1f s; %d hangs, %d leftovers, %d of "
      "libraries\n",
      quantile(0.5), quantile(0.99), told.empty() ? 0.0 : told.back(), tally.late_s, tally.hangs,
      tally.leftovers, tally.of_libraries);
}

[[maybe_unused]] const bool kRegistered = [] {
  const Transport transports[] = {
      {.name = "shm", .backend = "shm", .fabric = "auto"},
      {.name = "mpi", .backend = "mpi", .fabric = "mpi", .needs_mpi = true},
      {.name = "hierarchical over MPI",
       .backend = "hierarchical",
       .fabric = "mpi",
       .has_hosts = true,
       .needs_mpi = true},
      {.name = "hierarchical over UCX",
       .backend = "hierarchical",
       .fabric = "ucx",
       .has_hosts = true},
      {.name = "fabric over UCX", .backend = "fabric", .fabric = "ucx"}};
  for (const Transport& transport : transports) {
    add_case("ranks are killed at random moments over " + transport.name, "",
             [transport] { check_kills(transport); });
    if (!transport.needs_mpi) continue;
    add_case("ranks die in MPI_Finalize over " + transport.name, "",
             [transport] { check_deaths_in_finalize(transport); });
  }
  add_case("a rank stops in MPI_Finalize", "",
           [mpi = transports[1]] { check_stop_in_finalize(mpi); });
  return true;
}();

}  // namespace
}  // namespace ronde::test
