// SPDX-License-Identifier: Apache-2.0
// Ranks that die, leave or hang: what the others get of it. Verdicts come from the ranks' own
// reports (job.h), as a launcher's exit status says little.
#include <algorithm>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "case_table.h"
#include "job.h"
#include "random_program.h"

namespace ronde::test {
namespace {

/// What victim.cc is told, and how the end is to be described by the survivors.
struct Failure {
  int ranks = 3;
  std::string moment;
  std::string end;
  std::vector<int> victims = {};
  unsigned seed = 1;
  std::vector<std::pair<std::string, std::string>> variables = {};
  std::string hosts = {};  ///< a letter a rank; empty: all on one
};

std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
  return text;
}

JobSpec job_of(const Failure& failure) {
  JobSpec spec;
  spec.ranks = failure.ranks;
  spec.program = {RONDE_TEST_VICTIM};
  spec.arguments = {failure.moment, failure.end, list_of(failure.victims),
                    std::to_string(failure.seed)};
  spec.variables = failure.variables;
  spec.variables.emplace_back("RONDE_LOG_LEVEL", "warning");
  if (!failure.hosts.empty()) spec.variables.emplace_back("RONDE_TEST_HOSTS", failure.hosts);
  if (failure.end == "stops") spec.stopped_rank = failure.victims.front();
  return spec;
}

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

/// The leader of the rank's host is a victim: nobody else tells it anything.
bool is_cut_off(const Failure& failure, int rank) {
  if (failure.hosts.empty()) return contains(failure.victims, 0);
  const auto leader = failure.hosts.find(failure.hosts.at(static_cast<std::size_t>(rank)));
  return contains(failure.victims, static_cast<int>(leader));
}

/// By what words the reason is recognised.
std::string words_of(const std::string& end, bool hears_nothing) {
  if (end.ends_with("a thread shuts down")) return "left before its ronde::shutdown() was over";
  if (end == "returns" || end.starts_with("calls exit")) return "left without calling";
  if (end == "shuts down") return "called shutdown() while";
  if (end == "aborts") return "aborted: enough";
  if (end == "never submits") return "has waited";
  if (end == "stops") return hears_nothing ? "does not answer" : "has waited";
  return "was lost";
}

void check_report(const Failure& failure, int rank, const nlohmann::json& report) {
  constexpr double kLongest = 10.0;
  CAPTURE(rank, report.dump(2));
  REQUIRE(report["threw"] == "GroupError");
  const int failed_rank = report["failed_rank"].get<int>();
  const std::string text = report["text"].get<std::string>();
  CHECK(contains(failure.victims, failed_rank));
  // Where the leader of a host is stopped, its ranks are missing as well: "ranks 2,3".
  const std::regex name("ranks? " + std::to_string(failed_rank) + "\\b");
  CHECK(std::regex_search(text, name));
  const bool hears_nothing = failed_rank == 0 || is_cut_off(failure, rank);
  CHECK(text.find(words_of(failure.end, hears_nothing)) != std::string::npos);
  const double first_end = report["ends_s"][0].get<double>();
  CHECK(report["at_s"].get<double>() - first_end < kLongest);
  CHECK(report["later"] == "the same");
  CHECK(report["shutdown_s"].get<double>() < kLongest);
}

void check_clean_end(const JobResult& result) {
  CHECK_FALSE(result.timed_out);
  CHECK(result.exit_status != 0);
  CHECK(result.left_processes == std::vector<std::string>());
  CHECK(result.left_in_dev_shm == std::vector<std::string>());
  CHECK(result.left_memory == std::vector<std::string>());
}

JobResult check_failure(const Failure& failure) {
  const JobResult result = run_job(job_of(failure));
  CAPTURE(result.output);
  check_clean_end(result);
  const bool victims_live =
      failure.end == "shuts down" || failure.end == "never submits" || failure.end == "aborts";
  std::set<std::string> verdicts;
  for (int rank = 0; rank < failure.ranks; ++rank) {
    if (!victims_live && contains(failure.victims, rank)) continue;
    CAPTURE(rank);
    REQUIRE(result.reports.contains(rank));
    check_report(failure, rank, result.reports.at(rank));
    if (!victims_live && is_cut_off(failure, rank)) continue;
    verdicts.insert(result.reports.at(rank)["text"].get<std::string>());
  }
  // Rank 0 tells the others, so all say the same; without it each leader speaks for its host.
  if (victims_live || !contains(failure.victims, 0)) CHECK(verdicts.size() == 1);
  return result;
}

/// The victim dies at some moment within an operation, with many of them in flight.
void check_kills_in_operations(const std::string& moment, int kills) {
  constexpr int kRanks = 3;
  const TestSeed seed = test_seed(1);
  INFO(seed.text());
  Dice dice(seed.value);
  for (int i = 0; i < kills; ++i) {
    const JobResult result = check_failure({.ranks = kRanks,
                                            .moment = moment,
                                            .end = "is killed",
                                            .victims = {static_cast<int>(dice.below(kRanks))},
                                            .seed = static_cast<unsigned>(dice.below(1'000'000)),
                                            .variables = {{"RONDE_CPU_BACKEND", "shm"}}});
    CHECK_FALSE(result.shared_memory.empty());
  }
}

/// The others give up in time, and say what they waited for.
void check_absence(int absent, const std::string& who_starts_mpi) {
  constexpr double kTimeout = 2.0;
  constexpr double kLongest = kTimeout + 8.0;
  constexpr int kRanks = 3;
  JobSpec spec;
  spec.ranks = kRanks;
  spec.program = {RONDE_TEST_ABSENT};
  spec.arguments = {std::to_string(absent), who_starts_mpi};
  spec.variables = {{"RONDE_INIT_TIMEOUT_S", "2"}, {"RONDE_LOG_LEVEL", "warning"}};
  const JobResult result = run_job(spec);
  CAPTURE(result.output);
  check_clean_end(result);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == absent) continue;
    REQUIRE(result.reports.contains(rank));
    const nlohmann::json& report = result.reports.at(rank);
    CAPTURE(rank, report.dump(2));
    REQUIRE(report["threw"] == "GroupError");
    const std::string text = report["text"].get<std::string>();
    CHECK(text.find("has not called ronde::init()") != std::string::npos);
    // MPI does not tell whom it waits for.
    CHECK(report["failed_rank"] == -1);
    CHECK(report["waited_s"].get<double>() >= kTimeout);
    CHECK(report["waited_s"].get<double>() < kLongest);
    CHECK(report["is_initialized"] == false);
  }
}

void check_uncaught(bool launcher_spares_survivors) {
  JobSpec spec =
      job_of({.moment = "while others wait and do not catch", .end = "is killed", .victims = {1}});
  spec.launcher_spares_survivors = launcher_spares_survivors;
  const JobResult result = run_job(spec);
  CAPTURE(result.output);
  check_clean_end(result);
  if (launcher_spares_survivors) CHECK(result.output.find("rank 1 was lost") != std::string::npos);
}

void add(const std::string& name, const Failure& failure) {
  add_case(name, "", [failure] { static_cast<void>(check_failure(failure)); });
}

void add_ends() {
  for (const std::string moment : {"while idle", "while others wait", "in a stream"}) {
    for (const std::string end :
         {"is killed", "returns", "throws", "calls exit", "quits by _exit"}) {
      for (const int victim : {0, 1, 2}) {
        add("rank " + std::to_string(victim) + " of 3 " + end + " " + moment,
            {.moment = moment, .end = end, .victims = {victim}, .seed = 7});
      }
    }
  }
}

void add_moments() {
  for (const int victim : {0, 2}) {
    const std::string rank = "rank " + std::to_string(victim) + " of 3 ";
    add(rank + "is killed while others shut down",
        {.moment = "while others shut down", .end = "is killed", .victims = {victim}});
    add(rank + "returns while others shut down",
        {.moment = "while others shut down", .end = "returns", .victims = {victim}});
    add(rank + "shuts down while others wait",
        {.moment = "while others wait", .end = "shuts down", .victims = {victim}});
    add(rank + "calls exit on another thread while others wait",
        {.moment = "while others wait",
         .end = "calls exit on another thread",
         .victims = {victim}});
    for (const std::string what : {"runs an operation", "makes a set", "shuts down"}) {
      add(rank + "calls exit while a thread " + what, {.moment = "while idle",
                                                       .end = "calls exit while a thread " + what,
                                                       .victims = {victim}});
    }
    add(rank + "calls exit in a callback",
        {.moment = "while others wait", .end = "calls exit in a callback", .victims = {victim}});
  }
}

void add_streams_of_sets() {
  for (unsigned seed = 1; seed <= 12; ++seed) {
    const int victim = static_cast<int>(seed % 4);
    const std::string backend = seed % 3 == 0 ? "mpi" : "shm";
    for (const std::string what : {"sets", "joins"}) {
      const bool on_two_hosts = seed % 3 == 1;
      add("rank " + std::to_string(victim) + " of 4" + (on_two_hosts ? " on two hosts" : "") +
              " is killed in a stream of " + what + " " + std::to_string(seed),
          {.ranks = 4,
           .moment = "in a stream of " + what,
           .end = "is killed",
           .victims = {victim},
           .seed = seed,
           .variables = {{"RONDE_CPU_BACKEND", on_two_hosts ? "auto" : backend}},
           .hosts = on_two_hosts ? "abab" : ""});
    }
  }
}

void add_streams() {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const int victim = static_cast<int>(seed % 4);
    add("rank " + std::to_string(victim) + " of 4 is killed in stream " + std::to_string(seed),
        {.ranks = 4,
         .moment = "in a stream",
         .end = "is killed",
         .victims = {victim},
         .seed = seed,
         .variables = {{"RONDE_CPU_BACKEND", seed % 2 == 0 ? "mpi" : "shm"}}});
  }
  // Two simulated hosts: the operations are large, so that messages between them are on their way.
  for (unsigned seed = 1; seed <= 4; ++seed) {
    const int victim = static_cast<int>(seed % 4);
    add("rank " + std::to_string(victim) + " of 4 on two hosts is killed in large operation " +
            std::to_string(seed),
        {.ranks = 4,
         .moment = "in a stream of large operations",
         .end = "is killed",
         .victims = {victim},
         .seed = seed,
         .variables = {{"RONDE_CPU_BACKEND", "hierarchical"}},
         .hosts = "aabb"});
  }
  for (const std::string backend : {"shm", "mpi", "hierarchical"}) {
    for (const int victim : {0, 1, 2}) {
      add("rank " + std::to_string(victim) + " of 3 is killed in a large message over " + backend,
          {.moment = "in a stream of large messages",
           .end = "is killed",
           .victims = {victim},
           .seed = static_cast<unsigned>(20 + victim),
           .variables = {{"RONDE_CPU_BACKEND", backend}},
           .hosts = backend == "hierarchical" ? "aab" : ""});
    }
  }
  // These spend nearly all their time inside one operation.
  for (unsigned seed = 1; seed <= 9; ++seed) {
    const int victim = static_cast<int>(seed % 3);
    add("rank " + std::to_string(victim) + " of 3 is killed in large operation " +
            std::to_string(seed),
        {.moment = "in a stream of large operations",
         .end = "is killed",
         .victims = {victim},
         .seed = seed});
  }
}

void add_pairs() {
  for (const std::string moment : {"while idle", "while others wait", "in a stream"}) {
    for (const std::vector<int>& victims : std::vector<std::vector<int>>{{1, 2}, {0, 3}}) {
      add("ranks " + list_of(victims) + " of 4 are killed at once " + moment,
          {.ranks = 4, .moment = moment, .end = "is killed", .victims = victims, .seed = 3});
    }
  }
}

void add_hangs() {
  const std::vector<std::pair<std::string, std::string>> limits = {{"RONDE_STALL_WARN_S", "0.5"},
                                                                   {"RONDE_STALL_ABORT_S", "2"}};
  for (const int victim : {0, 1, 2}) {
    for (const std::string end : {"stops", "never submits"}) {
      add("rank " + std::to_string(victim) + " of 3 " + end + " while others wait",
          {.moment = "while others wait", .end = end, .victims = {victim}, .variables = limits});
    }
  }
}

/// All ranks of simulated hosts, one after the other.
void add_each(const std::string& name, const Failure& failure) {
  add_case(name + ", rank by rank of hosts " + failure.hosts, "", [failure] {
    for (int victim = 0; victim < failure.ranks; ++victim) {
      Failure one = failure;
      one.victims = {victim};
      CAPTURE(victim);
      static_cast<void>(check_failure(one));
    }
  });
}

void add_several_hosts() {
  for (const std::string hosts : {"aabb", "abc", "abbb", "abab"}) {
    const int ranks = static_cast<int>(hosts.size());
    add_each("killed while others wait",
             {.ranks = ranks, .moment = "while others wait", .end = "is killed", .hosts = hosts});
    add_each("killed in init",
             {.ranks = ranks, .moment = "in init", .end = "is killed", .hosts = hosts});
  }
  for (const std::string end : {"returns", "calls exit", "quits by _exit"}) {
    add_each(end + " in a stream",
             {.ranks = 4, .moment = "in a stream", .end = end, .hosts = "aabb"});
  }
  add_each("killed while idle",
           {.ranks = 4, .moment = "while idle", .end = "is killed", .hosts = "aabb"});
  add_each("killed while others shut down",
           {.ranks = 4, .moment = "while others shut down", .end = "is killed", .hosts = "aabb"});
  add_each("aborts while others wait",
           {.ranks = 4, .moment = "while others wait", .end = "aborts", .hosts = "aabb"});
  add_each("shuts down while others wait",
           {.ranks = 4, .moment = "while others wait", .end = "shuts down", .hosts = "aabb"});
  const std::vector<std::pair<std::string, std::string>> limits = {{"RONDE_STALL_WARN_S", "0.5"},
                                                                   {"RONDE_STALL_ABORT_S", "2"}};
  for (const std::string end : {"stops", "never submits"}) {
    add_each(end + " while others wait", {.ranks = 4,
                                          .moment = "while others wait",
                                          .end = end,
                                          .variables = limits,
                                          .hosts = "abab"});
  }
  for (const std::vector<int>& victims : std::vector<std::vector<int>>{{0, 2}, {2, 3}, {1, 2}}) {
    add("ranks " + list_of(victims) + " of hosts aabb are killed at once in a stream",
        {.ranks = 4,
         .moment = "in a stream",
         .end = "is killed",
         .victims = victims,
         .seed = 3,
         .hosts = "aabb"});
  }
}

[[maybe_unused]] const bool kRegistered = [] {
  add_ends();
  add_moments();
  add_streams();
  add_streams_of_sets();
  add_pairs();
  add_hangs();
  add_several_hosts();
  add_case("ranks are killed inside operations at random", "",
           [] { check_kills_in_operations("in a stream of many at once", 10); });
  add_case("ranks are killed inside operations on symmetric buffers at random", "",
           [] { check_kills_in_operations("in a stream of symmetric buffers", 5); });
  for (const std::string who_starts_mpi : {"ronde", "program"}) {
    for (const int absent : {0, 2}) {
      add_case("rank " + std::to_string(absent) + " of 3 never calls init, and the " +
                   (who_starts_mpi == "ronde" ? "others" : "program") + " started MPI",
               "", [absent, who_starts_mpi] { check_absence(absent, who_starts_mpi); });
    }
  }
  add_case("survivors that do not catch the error end the job", "", [] { check_uncaught(true); });
  add_case("a launcher that ends the survivors leaves nothing behind", "",
           [] { check_uncaught(false); });
  return true;
}();

}  // namespace
}  // namespace ronde::test
