// SPDX-License-Identifier: Apache-2.0
// Ranks that die, leave or hang: what the others get of it. Verdicts come from the ranks' own
// reports (job.h), as a launcher's exit status says little.
#include <future>
#include <iostream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "ronde/ronde.h"
#include "tests/jobs/failures/job.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/processes/beside.h"
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
    spec.variables.emplace_back("RONDE_STALL_ABORT_S", "5");
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

/// In s. Of a link that is cut the kernel tells after 7 to 14.
double longest_time(const Failure& failure) {
  if (failure.cuts()) return 20.0;
  return failure.in_namespaces && failure.end == "is killed" ? 5.0 : 20.0;
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
  const std::string words = words_of(failure.end, hears_nothing);
  // Where the leader that sees a death does not say so in time, UCX's own error stays.
  const std::string of_ucx = "lost its UCX connection to rank " + std::to_string(failed_rank);
  const bool says_words = text.find(words) != std::string::npos;
  CHECK((says_words || (words == "was lost" && text.find(of_ucx) != std::string::npos)));
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

void check_result(const Failure& failure, const JobResult& result) {
  CAPTURE(name_of(failure), result.output);
  if (failure.in_namespaces && is_skipped(result)) return;
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
}

std::vector<JobResult> run_at_once(const std::vector<JobSpec>& jobs) {
  std::vector<std::future<JobResult>> running;
  for (const JobSpec& job : jobs) {
    running.push_back(std::async(std::launch::async, [&job] { return run_job(job); }));
  }
  std::vector<JobResult> results;
  for (std::future<JobResult>& each : running) results.push_back(each.get());
  return results;
}

/// The victim dies at some moment within an operation, with many of them in flight.
void check_kills_in_operations(const std::string& moment, int kills) {
  const TestSeed seed = test_seed(1);
  INFO(seed.text());
  Dice dice(seed.value);
  for (int i = 0; i < kills; ++i) {
    const Failure failure = {.moment = moment,
                             .victims = {static_cast<int>(dice.below(3))},
                             .seed = static_cast<unsigned>(dice.below(1'000'000)),
                             .backend = "shm"};
    const JobResult result = run_job(job_of(failure));
    check_result(failure, result);
    CHECK_FALSE(result.shared_memory.empty());
  }
}

JobSpec absence_of(int absent, const std::string& moment) {
  JobSpec spec;
  spec.ranks = 3;
  spec.program = {RONDE_TEST_KILLED};
  spec.arguments = {std::to_string(absent), moment, "0", "0", "aaa"};
  spec.variables = {{"RONDE_INIT_TIMEOUT_S", "2"}, {"RONDE_LOG_LEVEL", "warning"}};
  return spec;
}

/// The others give up in time, and say what they waited for.
void check_absence(int absent, const JobResult& result) {
  constexpr double kTimeout = 2.0;
  constexpr double kLongest = kTimeout + 8.0;
  CAPTURE(absent, result.output);
  check_clean_end(result);
  for (int rank = 0; rank < 3; ++rank) {
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
  add_case(name_of(failure), "", [failure] { check_result(failure, run_job(job_of(failure))); });
}

/// Jobs that mostly wait for their limits.
void add_at_once(const std::string& name, const std::vector<Failure>& failures) {
  add_case(name, "", [failures] {
    std::vector<JobSpec> jobs;
    for (const Failure& failure : failures) jobs.push_back(job_of(failure));
    const std::vector<JobResult> results = run_at_once(jobs);
    for (std::size_t i = 0; i < results.size(); ++i) check_result(failures[i], results[i]);
  });
}

/// Each of these ranks, by itself, in each of these ways.
std::vector<Failure> each_of(Failure failure, const std::vector<int>& victims,
                             const std::vector<std::string>& ends) {
  std::vector<Failure> all;
  for (const std::string& end : ends) {
    for (const int victim : victims) {
      failure.end = end;
      failure.victims = {victim};
      all.push_back(failure);
    }
  }
  return all;
}

void add_each(const Failure& failure, const std::vector<int>& victims,
              const std::vector<std::string>& ends = {"is killed"}) {
  for (const Failure& one : each_of(failure, victims, ends)) add(one);
}

std::vector<std::string> fabrics() {
  return has_feature("ucx") ? std::vector<std::string>{"auto", "ucx"}
                            : std::vector<std::string>{"auto"};
}

void add_one_host() {
  for (const std::string moment : {"while idle", "while others wait", "in a stream"}) {
    add_each({.moment = moment, .seed = 7}, {0, 2},
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
  add({.moment = "while others wait",
       .end = "is killed while a child holds its sockets",
       .victims = {1},
       .backend = "mpi"});
  add_at_once("ranks of one host stop or never submit",
              each_of({.moment = "while others wait"}, {0, 2}, {"stops", "never submits"}));
  add_each({.moment = "while idle"}, {0, 2},
           {"calls exit while a thread runs an operation", "calls exit while a thread makes a set",
            "calls exit while a thread shuts down"});
}

void add_several_hosts() {
  for (const std::string moment : {"while others wait", "in init"}) {
    add_each({.ranks = 4, .moment = moment, .hosts = "aabb"}, {0, 1, 2, 3});
    add_each({.ranks = 4, .moment = moment, .hosts = "abbb"}, {1, 3});
    add_each({.ranks = 4, .moment = moment, .hosts = "abab"}, {1, 2});
    add_each({.moment = moment, .hosts = "abc"}, {0, 2});
  }
  add_each({.ranks = 4, .moment = "in a stream", .hosts = "aabb"}, {0, 1, 2, 3},
           {"calls exit", "quits by _exit"});
  add_each({.ranks = 4, .moment = "while idle", .hosts = "aabb"}, {0, 1, 2, 3});
  for (const std::string& fabric : fabrics()) {
    add_each({.ranks = 4, .moment = "between rows and data", .hosts = "aabb", .fabric = fabric},
             {0, 3}, {"is killed", "calls exit"});
  }
  add_each({.ranks = 4, .moment = "while others shut down", .hosts = "aabb"}, {0, 1, 2, 3});
  add_each({.ranks = 4, .moment = "while others wait", .hosts = "aabb"}, {0, 1, 2, 3},
           {"aborts", "shuts down"});
  for (const std::string end : {"stops", "never submits"}) {
    add_at_once(
        "a rank of hosts abab " + end,
        each_of({.ranks = 4, .moment = "while others wait", .hosts = "abab"}, {0, 1, 2, 3}, {end}));
  }
  for (const std::set<int>& victims : std::vector<std::set<int>>{{0, 2}, {2, 3}, {1, 2}}) {
    add({.ranks = 4, .moment = "in a stream", .victims = victims, .seed = 3, .hosts = "aabb"});
  }
}

/// In the middle of whatever the rank is doing at some moment; kills_test.cc has more of them.
void add_streams() {
  for (unsigned seed = 1; seed <= 8; ++seed) {
    Failure failure = {.ranks = 4, .victims = {static_cast<int>(seed % 4)}, .seed = seed};
    failure.moment = "in a stream";
    failure.backend = seed % 2 == 0 ? "mpi" : "shm";
    add(failure);
    if (seed > 6) continue;
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
  add_each({.moment = large + "operations", .seed = 3}, {0, 1, 2});
  for (const std::string& fabric : fabrics()) {
    add_each({.ranks = 4,
              .moment = large + "operations",
              .seed = 4,
              .backend = "hierarchical",
              .hosts = "aabb",
              .fabric = fabric},
             fabric == "ucx" ? std::vector<int>{1, 2} : std::vector<int>{0, 3});
  }
  for (const int victim : {0, 2}) {
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
  }
}

/// Data by UCX, ranks started without MPI.
void add_namespaces() {
  if (!has_feature("ucx")) return;
  Failure failure = {.ranks = 4, .hosts = "aabb", .in_namespaces = true};
  // Of messages between two ranks nobody but the leader of a host could clear the rank below it.
  const std::vector<int> victims = {2, 1, 3};
  const std::vector<std::string> moments = {"while others wait", "in a stream of large messages",
                                            "in a stream of large operations"};
  std::vector<Failure> cuts;
  for (std::size_t i = 0; i < moments.size(); ++i) {
    failure.moment = moments[i];
    add_each(failure, {victims[i]}, {"is killed", "stops"});
    const std::vector<Failure> cut = each_of(failure, {3}, {"cuts the link"});
    cuts.insert(cuts.end(), cut.begin(), cut.end());
  }
  add_at_once("the link between namespaces is cut", cuts);
}

[[maybe_unused]] const bool kRegistered = [] {
  add_one_host();
  add_several_hosts();
  add_streams();
  add_namespaces();
  add_case("ranks are killed inside operations at random", "",
           [] { check_kills_in_operations("in a stream of many at once", 3); });
  add_case("ranks are killed inside operations on symmetric buffers at random", "",
           [] { check_kills_in_operations("in a stream of symmetric buffers", 2); });
  for (const std::string moment :
       {"absent", "absent, MPI for all threads", "absent, MPI for one thread"}) {
    add_case("a rank never calls init: " + moment, "", [moment] {
      const std::vector<JobResult> results =
          run_at_once({absence_of(0, moment), absence_of(2, moment)});
      check_absence(0, results[0]);
      check_absence(2, results[1]);
    });
  }
  add_case("survivors that do not catch the error end the job", "", [] { check_uncaught(true); });
  add_case("a launcher that ends the survivors leaves nothing behind", "",
           [] { check_uncaught(false); });
  return true;
}();

}  // namespace
}  // namespace ronde::test
