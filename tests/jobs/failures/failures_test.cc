// SPDX-License-Identifier: Apache-2.0
// Ranks that die, leave or hang: what the others get of it. Verdicts come from the ranks' own
// reports (job.h), as a launcher's exit status says little.
#include <iostream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "ronde/ronde.h"
#include "tests/jobs/failures/job.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/ranks/random_program.h"

namespace ronde::test {
namespace {

/// What victim.cc is told, and how the end is to be described by the survivors.
struct Failure {
  int ranks = 3;
  std::string moment = {};
  std::string end = "is killed";
  std::set<int> victims = {};
  unsigned seed = 1;
  std::string backend = "auto";
  std::string hosts = {};  ///< a letter a rank; empty: all on one
  std::string fabric = "auto";
  /// Half of the ranks in each of two network namespaces, started without MPI; `hosts` is "aabb".
  bool in_namespaces = false;

  /// No rank ends, but each loses those of the other host.
  bool cuts() const { return end == "cuts the link"; }
};

std::string list_of(const std::set<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
  return text;
}

std::string name_of(const Failure& failure) {
  return (failure.victims.size() == 1 ? "rank " : "each of ranks ") + list_of(failure.victims) +
         " of " +
         (failure.hosts.empty() ? std::to_string(failure.ranks) : "hosts " + failure.hosts) + " " +
         failure.end + " " + failure.moment + ", backend " + failure.backend +
         (failure.fabric == "auto" ? "" : " over " + failure.fabric) +
         (failure.in_namespaces ? " between namespaces" : "") + ", seed " +
         std::to_string(failure.seed);
}

JobSpec job_of(const Failure& failure) {
  JobSpec spec;
  spec.ranks = failure.ranks;
  spec.program = {RONDE_TEST_VICTIM};
  spec.arguments = {failure.moment, failure.end, list_of(failure.victims),
                    std::to_string(failure.seed)};
  spec.variables = {{"RONDE_CPU_BACKEND", failure.backend},
                    {"RONDE_FABRIC", failure.fabric},
                    {"RONDE_LOG_LEVEL", "warning"}};
  if (failure.in_namespaces) {
    spec.launcher = RONDE_TEST_TWO_HOSTS;
  } else if (!failure.hosts.empty()) {
    spec.variables.emplace_back("RONDE_TEST_HOSTS", failure.hosts);
  }
  // Unfused, so that several are in flight between hosts.
  if (failure.backend == "hierarchical") spec.variables.emplace_back("RONDE_FUSION_BYTES", "0");
  if (failure.end == "stops") spec.stopped_rank = *failure.victims.begin();
  if (failure.end == "stops" || failure.end == "never submits") {
    spec.variables.emplace_back("RONDE_STALL_WARN_S", "0.5");
    spec.variables.emplace_back("RONDE_STALL_ABORT_S", "2");
  }
  return spec;
}

/// The leader of the rank's host is a victim: nobody else tells it anything.
bool is_cut_off(const Failure& failure, int rank) {
  if (failure.hosts.empty()) return failure.victims.contains(0);
  const auto leader = failure.hosts.find(failure.hosts.at(static_cast<std::size_t>(rank)));
  return failure.victims.contains(static_cast<int>(leader));
}

/// By what words the reason is recognised.
std::string words_of(const std::string& end, bool hears_nothing) {
  if (end.ends_with("a thread shuts down")) return "left before its ronde::shutdown() was over";
  if (end == "returns") return "left without calling ronde::shutdown(): it ends with exit code 0";
  if (end == "throws") {
    return "left without calling ronde::shutdown(): an uncaught exception ends it: the victim "
           "throws";
  }
  if (end.starts_with("calls exit")) {
    return "left without calling ronde::shutdown(): it ends with exit code 3";
  }
  if (end == "shuts down") return "called shutdown() while";
  if (end == "aborts") return "aborted: enough";
  if (end == "never submits") return "has waited";
  if (end == "stops") return hears_nothing ? "not answer" : "has waited";
  if (end == "cuts the link") return "lost";
  return "was lost";
}

/// Whether one rank may say that it has lost the other one.
bool is_lost_to(const Failure& failure, int lost, int rank) {
  if (!failure.cuts()) return failure.victims.contains(lost);
  const auto host = [&](int of) { return failure.hosts.at(static_cast<std::size_t>(of)); };
  return host(lost) != host(rank);
}

/// In s.
double longest_time(const Failure& failure) {
  if (failure.cuts()) return 15.0;
  return failure.in_namespaces && failure.end == "is killed" ? 2.0 : 10.0;
}

void check_report(const Failure& failure, int rank, const nlohmann::json& report) {
  const double longest = longest_time(failure);
  CAPTURE(rank, report.dump(2));
  REQUIRE(report["threw"] == "GroupError");
  const int failed_rank = report["failed_rank"].get<int>();
  const std::string text = report["text"].get<std::string>();
  CHECK(is_lost_to(failure, failed_rank, rank));
  // Where the leader of a host is stopped, its ranks are missing as well: "ranks 2,3".
  const std::regex name("ranks? " + std::to_string(failed_rank) + "\\b");
  CHECK(std::regex_search(text, name));
  const bool in_operation = text.find("has been in progress") != std::string::npos;
  const bool hears_nothing = failed_rank == 0 || is_cut_off(failure, rank) || in_operation;
  CHECK(text.find(words_of(failure.end, hears_nothing)) != std::string::npos);
  const double first_end = report["ends_s"][0].get<double>();
  CHECK(report["at_s"].get<double>() - first_end < longest);
  CHECK(report["later"] == "the same");
  CHECK(report["shutdown_s"].get<double>() < longest);
}

void check_clean_end(const JobResult& result) {
  CHECK_FALSE(result.timed_out);
  CHECK(result.exit_status != 0);
  CHECK(result.left_processes == std::vector<std::string>());
  CHECK(result.left_in_dev_shm == std::vector<std::string>());
  CHECK(result.left_memory == std::vector<std::string>());
}

/// Says so.
bool is_skipped(const JobResult& result) {
  const auto skipped = result.output.find("skipped: ");
  if (skipped != std::string::npos) std::cout << result.output.substr(skipped);
  return skipped != std::string::npos;
}

JobResult check_failure(const Failure& failure) {
  const JobResult result = run_job(job_of(failure));
  CAPTURE(result.output);
  if (failure.in_namespaces && is_skipped(result)) return result;
  check_clean_end(result);
  const bool victims_live = failure.cuts() || failure.end == "shuts down" ||
                            failure.end == "never submits" || failure.end == "aborts";
  std::set<std::string> verdicts;
  for (int rank = 0; rank < failure.ranks; ++rank) {
    if (!victims_live && failure.victims.contains(rank)) continue;
    CAPTURE(rank);
    REQUIRE(result.reports.contains(rank));
    check_report(failure, rank, result.reports.at(rank));
    if (!victims_live && is_cut_off(failure, rank)) continue;
    verdicts.insert(result.reports.at(rank)["text"].get<std::string>());
  }
  // Rank 0 tells the others, so all say the same; without it each leader speaks for its host.
  if (failure.cuts()) {
    CHECK(verdicts.size() >= 2);  // each host has its own
  } else if (victims_live || !failure.victims.contains(0)) {
    CHECK(verdicts.size() == 1);
  }
  return result;
}

/// The victim dies at some moment within an operation, with many of them in flight.
void check_kills_in_operations(const std::string& moment, int kills) {
  const TestSeed seed = test_seed(1);
  INFO(seed.text());
  Dice dice(seed.value);
  for (int i = 0; i < kills; ++i) {
    const JobResult result = check_failure({.moment = moment,
                                            .victims = {static_cast<int>(dice.below(3))},
                                            .seed = static_cast<unsigned>(dice.below(1'000'000)),
                                            .backend = "shm"});
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
  JobSpec spec = job_of({.moment = "while others wait and do not catch", .victims = {1}});
  spec.launcher_spares_survivors = launcher_spares_survivors;
  const JobResult result = run_job(spec);
  CAPTURE(result.output);
  check_clean_end(result);
  if (launcher_spares_survivors) CHECK(result.output.find("rank 1 was lost") != std::string::npos);
}

void add(const Failure& failure) {
  add_case(name_of(failure), "", [failure] { static_cast<void>(check_failure(failure)); });
}

/// Each of these ranks, by itself, in each of these ways.
void add_each(Failure failure, const std::vector<int>& victims,
              const std::vector<std::string>& ends = {"is killed"}) {
  for (const std::string& end : ends) {
    for (const int victim : victims) {
      failure.end = end;
      failure.victims = {victim};
      add(failure);
    }
  }
}

std::vector<std::string> fabrics() {
  return has_feature("ucx") ? std::vector<std::string>{"auto", "ucx"}
                            : std::vector<std::string>{"auto"};
}

void add_one_host() {
  for (const std::string moment : {"while idle", "while others wait", "in a stream"}) {
    add_each({.moment = moment, .seed = 7}, {0, 1, 2},
             {"is killed", "returns", "throws", "calls exit", "quits by _exit"});
    add({.ranks = 4, .moment = moment, .victims = {1, 2}, .seed = 3});
    add({.ranks = 4, .moment = moment, .victims = {0, 3}, .seed = 3});
  }
  add_each({.moment = "while others shut down"}, {0, 2}, {"is killed", "returns"});
  for (const std::string backend : {"shm", "mpi"}) {
    add_each({.moment = "between rows and data", .backend = backend}, {0, 2},
             {"is killed", "calls exit"});
  }
  add_each({.moment = "while others wait"}, {0, 2},
           {"shuts down", "calls exit on another thread", "calls exit in a callback"});
  add_each({.moment = "while others wait"}, {0, 1, 2}, {"stops", "never submits"});
  add_each({.moment = "while idle"}, {0, 2},
           {"calls exit while a thread runs an operation", "calls exit while a thread makes a set",
            "calls exit while a thread shuts down"});
}

void add_several_hosts() {
  for (const std::string hosts : {"aabb", "abbb", "abab"}) {
    add_each({.ranks = 4, .moment = "while others wait", .hosts = hosts}, {0, 1, 2, 3});
    add_each({.ranks = 4, .moment = "in init", .hosts = hosts}, {0, 1, 2, 3});
  }
  add_each({.moment = "while others wait", .hosts = "abc"}, {0, 1, 2});
  add_each({.moment = "in init", .hosts = "abc"}, {0, 1, 2});
  add_each({.ranks = 4, .moment = "in a stream", .hosts = "aabb"}, {0, 1, 2, 3},
           {"returns", "calls exit", "quits by _exit"});
  add_each({.ranks = 4, .moment = "while idle", .hosts = "aabb"}, {0, 1, 2, 3});
  for (const std::string& fabric : fabrics()) {
    add_each({.ranks = 4, .moment = "between rows and data", .hosts = "aabb", .fabric = fabric},
             {0, 3}, {"is killed", "calls exit"});
  }
  add_each({.ranks = 4, .moment = "while others shut down", .hosts = "aabb"}, {0, 1, 2, 3});
  add_each({.ranks = 4, .moment = "while others wait", .hosts = "aabb"}, {0, 1, 2, 3},
           {"aborts", "shuts down"});
  add_each({.ranks = 4, .moment = "while others wait", .hosts = "abab"}, {0, 1, 2, 3},
           {"stops", "never submits"});
  for (const std::set<int>& victims : std::vector<std::set<int>>{{0, 2}, {2, 3}, {1, 2}}) {
    add({.ranks = 4, .moment = "in a stream", .victims = victims, .seed = 3, .hosts = "aabb"});
  }
}

/// In the middle of whatever the rank is doing at some moment.
void add_streams() {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    Failure failure = {.ranks = 4, .victims = {static_cast<int>(seed % 4)}, .seed = seed};
    failure.moment = "in a stream";
    failure.backend = seed % 2 == 0 ? "mpi" : "shm";
    add(failure);
    if (seed > 12) continue;
    failure.backend = seed % 3 == 0 ? "mpi" : seed % 3 == 1 ? "auto" : "shm";
    failure.hosts = seed % 3 == 1 ? "abab" : "";
    for (const std::string what : {"sets", "joins"}) {
      failure.moment = "in a stream of " + what;
      add(failure);
    }
  }
  // The operations are large, so that messages between hosts are on their way, and that ranks spend
  // nearly all their time inside one operation.
  const std::string large = "in a stream of large ";
  for (int seed = 1; seed <= 9; ++seed) {
    const auto number = static_cast<unsigned>(seed);
    add({.moment = large + "operations", .victims = {seed % 3}, .seed = number});
    if (seed > 4) continue;
    for (const std::string& fabric : fabrics()) {
      add({.ranks = 4,
           .moment = large + "operations",
           .victims = {seed % 4},
           .seed = number,
           .backend = "hierarchical",
           .hosts = "aabb",
           .fabric = fabric});
    }
  }
  for (const int victim : {0, 1, 2}) {
    Failure failure = {.moment = large + "messages", .victims = {victim}};
    failure.seed = static_cast<unsigned>(20 + victim);
    for (const std::string backend : {"shm", "mpi", "hierarchical"}) {
      failure.backend = backend;
      failure.hosts = backend == "hierarchical" ? "aab" : "";
      add(failure);
    }
    if (!has_feature("ucx")) continue;
    failure.fabric = "ucx";
    add(failure);
    failure.moment = "while others wait";
    failure.end = "stops";
    add(failure);
  }
}

/// Data by UCX, ranks started without MPI.
void add_namespaces() {
  if (!has_feature("ucx")) return;
  Failure failure = {.ranks = 4, .hosts = "aabb", .in_namespaces = true};
  for (const std::string moment : {"while others wait", "in a stream of large messages"}) {
    failure.moment = moment;
    add_each(failure, {1, 2}, {"is killed", "stops"});
    add_each(failure, {3}, {"cuts the link"});
  }
  failure.moment = "in a stream of large operations";
  add_each(failure, {3}, {"is killed", "stops", "cuts the link"});
}

[[maybe_unused]] const bool kRegistered = [] {
  add_one_host();
  add_several_hosts();
  add_streams();
  add_namespaces();
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
