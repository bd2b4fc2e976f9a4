// SPDX-License-Identifier: Apache-2.0
// `ronde prof report` and `compare`.
#include <catch2/catch.hpp>
#include <sstream>
#include <string>

#include "ronde/error.h"
#include "tests/support/processes/temporary_folder.h"
#include "tests/tools/prof_fixtures.h"
#include "tests/tools/ronde_command.h"
#include "tools/prof/read/profile.h"
#include "tools/prof/report/findings.h"
#include "tools/prof/report/report.h"

namespace {

using Catch::Contains;
using Catch::StartsWith;
using ronde::prof::Run;
using ronde::test::Json;
using ronde::test::ProfiledRun;
using ronde::test::run_command;
using ronde::test::TemporaryFolder;
using ronde::test::TracedRank;
using ronde::test::write_bytes;

Run read(const Json& profile) {
  const TemporaryFolder folder;
  write_bytes(folder / "p.json", profile.dump());
  return ronde::prof::read_run(folder / "p.json");
}

std::string report(const Run& run, bool fine = false) {
  std::ostringstream out;
  ronde::prof::print_report(run, fine, out);
  return out.str();
}

std::string report(const ProfiledRun& run) {
  return report(read(run.profile()));
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

/// The others wait 60 ms a step for rank 1.
ProfiledRun with_slow_rank() {
  ProfiledRun run;
  run.late_share = 0.93;
  run.lost_us = 60e3;
  run.negotiate_us = 15e3;
  run.exposed_us = 62e3;
  run.late_exposed_us = 2e3;
  run.step_us = 260e3;
  return run;
}

ProfiledRun with_small_fusion() {
  ProfiledRun run;
  run.fusion_bytes = "1MiB";
  run.messages = 172;
  run.message_bytes = 1e6;
  run.communicate_us = 500;
  run.exposed_us = 40e3;
  return run;
}

ProfiledRun with_changing_names() {
  ProfiledRun run;
  run.misses = run.tensors * run.steps;
  run.exposed_us = 40e3;
  run.thaws = 0;
  return run;
}

TEST_CASE("nothing stands out in the profile of a healthy run") {
  const std::string text = report(ProfiledRun());
  CHECK(first_line(text) == "nothing stands out");
  CHECK_THAT(text, !Contains("Findings"));
  CHECK_THAT(text, Contains("2 ranks on 1 host, 100 steps, 20.0 s") && Contains("cpu: shm"));
  CHECK_THAT(text, Contains("exposed communication 8.0 ms a step, 4.0 % of it"));
  CHECK_THAT(text, Contains("hidden behind the program 40 ms of 48 ms"));
  CHECK_THAT(text, Contains("a message holds 40.2 tensors and 43 MB, 64 % of RONDE_FUSION_BYTES"));
  CHECK_THAT(text, Contains("load batch") && Contains("250 MB/s"));
}

TEST_CASE("each of three pathologies is the first line of the report") {
  const std::string slow = first_line(report(with_slow_rank()));
  CHECK_THAT(slow, StartsWith("rank 1 came last for 93 % of messages; the others waited 60 ms a "
                              "step (23 %) for it: look at its data and its cores"));
  const std::string small = first_line(report(with_small_fusion()));
  CHECK_THAT(small, StartsWith("the fusion buffer is too small: 172 messages of 1.0 MB a step at "
                               "RONDE_FUSION_BYTES=1MiB"));
  CHECK_THAT(small, Contains("try RONDE_FUSION_BYTES=64MiB"));
  const std::string names = first_line(report(with_changing_names()));
  CHECK_THAT(names, StartsWith("names change from step to step: "));
  CHECK_THAT(names, Contains("use one name in every step, or none") && Contains("never froze"));
}

TEST_CASE("the report says what a slow rank does longer than the others") {
  const ProfiledRun run = with_slow_rank();
  Json profile = run.profile();
  profile["per_rank"][1]["spans"][0]["time"] = ronde::test::equal_times(100, 70e3);
  CHECK_THAT(first_line(report(read(profile))),
             Contains("its span \"load batch\" takes 70 ms a step, that of the others 4.0 ms"));
}

TEST_CASE("two ranks that are late by turns are no slow rank, nor is one by what all agree") {
  ProfiledRun by_turns = with_slow_rank(), agreeing = with_slow_rank();
  by_turns.lost_us = 900;
  CHECK_THAT(report(by_turns), !Contains("came last for"));
  agreeing.agreement_us = agreeing.lost_us;
  CHECK_THAT(report(agreeing),
             !Contains("came last for") && !Contains("ranks wait for each other"));
}

TEST_CASE("ranks that wait for each other by turns are told from 5 % of a step on") {
  ProfiledRun run;
  run.lost_us = 25e3;
  run.late_lost_us = 24e3;
  const std::string text = report(run);
  CHECK_THAT(first_line(text), StartsWith("ranks wait for each other: rank 0 loses 25 ms a step "
                                          "(12 %), most of it for rank 1; look in a timeline"));
  CHECK_THAT(text, Contains("rank 0               25.00       12 %    rank 1  50 %") &&
                       Contains("rank 1               24.00       12 %    rank 0  50 %"));
  run.lost_us = run.late_lost_us = 9.9e3;
  CHECK(first_line(report(run)) == "nothing stands out");
}

TEST_CASE("a short run that only announces its parameters once has no names that change") {
  ProfiledRun run;
  run.steps = 6;
  run.misses = 5 * 161;
  CHECK(first_line(report(run)) == "nothing stands out");
}

TEST_CASE("more operations than the cache holds are told of, and else names that change") {
  ProfiledRun run = with_changing_names();
  run.tensors = 2000;
  run.misses = run.tensors * run.steps;
  CHECK_THAT(first_line(report(run)),
             Contains("2,060 operations a step do not fit into RONDE_CACHE_CAPACITY=1024"));
}

TEST_CASE("exposed communication is told with its last bucket and the variable to change") {
  ProfiledRun run;
  run.exposed_us = 30e3;
  run.last_bucket_bytes = 41e6;
  run.last_lead_us = 3e3;
  CHECK(first_line(report(run)) ==
        "62 % of communication is exposed (30 ms of a step of 200 ms): the last bucket holds 41 MB "
        "and starts 3.0 ms before backward ends; try RONDE_FUSION_BYTES=16MiB");
}

TEST_CASE("ranks that wait for each other are not told to send fewer bytes") {
  ProfiledRun run;
  run.exposed_us = 40e3;
  run.communicate_us = 50;
  CHECK(first_line(report(run)) ==
        "ranks wait 40 ms of a step of 200 ms, and communication takes only 200 us: the rest is "
        "agreement, and waiting for each other in turns; look for what differs between ranks in a "
        "timeline (RONDE_TIMELINE)");
}

TEST_CASE("the loader is named where it takes a step's time and communication does not") {
  ProfiledRun run;
  run.loading_us = 90e3;
  CHECK_THAT(first_line(report(run)),
             StartsWith("the loader is the limit: span \"load batch\" takes 45 % of a step (90 ms "
                        "at 11 MB/s), exposed communication 4.0 %"));
}

TEST_CASE("only a span whose name has a word for loading is the loader") {
  ProfiledRun run;
  run.loading_us = 90e3;
  for (const char* name : {"read_samples", "Load Batch", "data loader"}) {
    run.span = name;
    CHECK_THAT(first_line(report(run)), StartsWith("the loader is the limit: "));
  }
  for (const char* name : {"upload", "train batch", "spread"}) {
    run.span = name;
    CHECK_THAT(first_line(report(run)), StartsWith("the program itself is the limit: "));
  }
  run.loading_us = 190e3;  // around the whole step
  CHECK(first_line(report(run)) == "nothing stands out");
}

TEST_CASE("a longer cycle is only proposed where messages wait for more tensors") {
  ProfiledRun run;
  run.messages = 100;
  run.message_bytes = 1e6;
  run.communicate_us = 500;
  run.exposed_us = 40e3;
  run.scheduled = 0;
  CHECK_THAT(report(run), Contains("try RONDE_CYCLE_TIME_MS=2 instead of 1"));
  run.flushes = 90 * run.steps;
  CHECK_THAT(report(run), !Contains("RONDE_CYCLE_TIME_MS=2"));
  run.flushes = 0;
  run.scheduled = -1;
  CHECK_THAT(report(run), !Contains("RONDE_CYCLE_TIME_MS=2"));
}

TEST_CASE("what messages wait for a slow rank is not told as their cost") {
  ProfiledRun run = with_small_fusion();
  run.late_share = 0.93;
  run.lost_us = 30e3;
  run.late_exposed_us = 5e3;
  CHECK_THAT(report(run), Contains("the fusion buffer is too small") &&
                              Contains("each of which takes 15 us besides its bytes"));
}

TEST_CASE("a run that tuned itself says so, and its thaws are no finding") {
  ProfiledRun run;
  run.thaws = run.tuned_thaws = 60;
  const std::string text = report(run);
  CHECK(first_line(text) == "nothing stands out");
  CHECK_THAT(text, Contains("the run tuned itself: settings are those at its end") &&
                       Contains("0 by the time limit, 60 by tuning"));
}

TEST_CASE("a schedule that thaws in every step is told with the reason") {
  ProfiledRun run;
  run.thaws = 100;
  CHECK_THAT(first_line(report(run)),
             StartsWith("the frozen schedule is thawed 1.0 times a step") &&
                 Contains("waited for a tensor whose bucket"));
}

TEST_CASE("findings for programs have a kind, a cost and the figures") {
  const TemporaryFolder folder;
  write_bytes(folder / "p.json", with_slow_rank().profile().dump());
  const auto result = run_command({"prof", "report", "--json", (folder / "p.json").string()});
  REQUIRE(result.exit_code == 0);
  const Json finding = Json::parse(result.out).at("findings").at(0);
  CHECK(finding.at("kind") == "slow_rank");
  CHECK(finding.at("cost_us_per_step").get<double>() == Approx(60e3));
  CHECK(finding.at("figures").at("rank") == 1);
  const Json lost = Json::parse(result.out).at("lost").at(0);
  CHECK(lost.at("rank") == 0);
  CHECK(lost.at("us_per_step").get<double>() == Approx(60e3));
  CHECK(lost.at("share_of_step").get<double>() == Approx(60.0 / 260));
}

TEST_CASE("the table has the classes of the study, or each class that was measured") {
  const Run run = read(ProfiledRun().profile());
  CHECK_THAT(report(run),
             Contains("32-64 MB           400     4.0  17200.0") && Contains(">64 MB"));
  CHECK_THAT(report(run, /*fine=*/true), Contains("to 64MiB") && !Contains(">64 MB"));
}

TEST_CASE("the files that ranks of a failed run left are joined") {
  const TemporaryFolder folder;
  ProfiledRun run;
  run.ranks = 3;
  run.failure = "rank 2 died";
  for (const int rank : {0, 1}) {
    Json profile = run.profile();
    profile["merged"] = run.figures(rank);
    profile.erase("per_rank");
    write_bytes(folder / ("p.json.rank" + std::to_string(rank) + ".json"), profile.dump());
  }
  for (const auto& path : {folder / "p.json", folder.path()}) {
    const Run joined = ronde::prof::read_run(path);
    CHECK(joined.missing_ranks == std::vector<int>{2});
    CHECK(joined.merged.samples == 3200);
    const std::string text = report(joined);
    CHECK(first_line(text) == "the run failed: rank 2 died");
    CHECK_THAT(text, Contains("without the figures of rank 2"));
    CHECK_THAT(text, Contains("32-64 MB           400     4.0  17200.0"));
  }
}

TEST_CASE("of a whole run's profile and those of a failed one the newer is shown, and told") {
  const TemporaryFolder folder;
  ProfiledRun run;
  write_bytes(folder / "p.json", run.profile().dump());
  run.failure = "rank 1 died";
  write_bytes(folder / "p.rank0.json", run.profile().dump());
  const auto now = std::filesystem::last_write_time(folder / "p.json");
  const auto hour = std::chrono::hours(1);
  const bool failed = GENERATE(true, false);
  std::filesystem::last_write_time(folder / "p.rank0.json", failed ? now + hour : now - hour);
  for (const auto& path : {folder / "p.json", folder.path()}) {
    const std::string text = report(ronde::prof::read_run(path));
    CHECK(first_line(text) == (failed ? "the run failed: rank 1 died" : "nothing stands out"));
    CHECK_THAT(text, Contains((failed ? "p.json is older than " : "p.rank0.json is older than ")) &&
                         Contains("it is of an earlier run, and left out"));
  }
}

TEST_CASE("a timeline gives the figures that its slices tell") {
  const TemporaryFolder folder;
  for (const int rank : {0, 1}) {
    TracedRank traced;
    traced.rank = rank;
    write_bytes(folder / ("rank" + std::to_string(rank) + ".json"), traced.text());
  }
  const Run run = ronde::prof::read_run(folder.path());
  CHECK(run.ranks == 2);
  CHECK(run.merged.steps == 1);
  CHECK(run.merged.samples == 32);
  CHECK(run.merged.exposed.mean() == Approx(10e3));
  CHECK(run.merged.backward.mean() == Approx(50e3));
  CHECK(run.merged.last_bucket->bytes == 1000);
  CHECK(run.merged.last_bucket->lead_us == Approx(5e3));
  const auto& large = run.merged.messages.at(64 << 20);
  CHECK(large.count == 2);
  CHECK(large.phases[ronde::prof::kPack].mean() == Approx(5e3));
  CHECK(large.phases[ronde::prof::kCommunicate].mean() == Approx(15e3));
  CHECK(large.phases[ronde::prof::kNegotiate].mean() == Approx(4e3));
  CHECK(large.phases[ronde::prof::kQueue].mean() == Approx(5e3));
  CHECK(run.merged.last_ranks.at(1).lost_us == Approx(8e3));
  CHECK(run.merged.spans.at("load batch").bytes == 16e6);
  // Bucket 17 of a process set is another one.
  const auto& of_set = run.merged.messages.at(4096);
  CHECK(of_set.count == 2);
  CHECK(of_set.phases[ronde::prof::kCommunicate].mean() == Approx(2e3));
  CHECK(of_set.phases[ronde::prof::kNegotiate].count == 0);
  CHECK_THAT(report(run), Contains("What ranks lost by waiting for late ones"));
}

TEST_CASE("the page holds the data of each run and needs no other file") {
  const TemporaryFolder folder;
  ProfiledRun run = with_slow_rank();
  Json profile = run.profile();
  profile["failure"] = "</script><!--<script>";
  std::filesystem::create_directory(folder / "runs");
  write_bytes(folder / "runs/a.json", profile.dump());
  run.ranks = 4;
  write_bytes(folder / "runs/b.json", run.profile().dump());
  write_bytes(folder / "runs/c.json", ProfiledRun().profile().dump());
  const std::string page = (folder / "page.html").string();
  const auto result = run_command({"prof", "report", "--html", page, (folder / "runs").string()});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const std::string text = ronde::test::read_text(page);
  const std::size_t begin = text.find("const runs = ") + 13;
  const Json data = Json::parse(text.substr(begin, text.find(";\n", begin) - begin));
  REQUIRE(data.size() == 3);
  CHECK(data[0].at("waited")[0].at("ms") == Json::parse("[[1, 60.0]]"));
  CHECK(data[1].at("ranks") == 4);
  CHECK(data[2].at("findings").empty());
  CHECK(text.find("</script>") == text.rfind("</script>"));
  CHECK(text.find("<!--") == std::string::npos);
  CHECK(data[0].at("findings")[0].at("text") == "the run failed: </script><!--<script>");
  CHECK_THAT(text, !Contains("src=") && !Contains("href="));
  CHECK(run_command({"prof", "report", "--html", "/nowhere/x", (folder / "runs").string()})
            .exit_code == 2);
}

TEST_CASE("input that cannot be read is told in a line, with exit code 2") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& command, const std::string& name,
                           const std::string& words) {
    const auto result = run_command({"prof", command, (folder / name).string()});
    INFO(result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK_THAT(result.err, StartsWith("ronde prof: ") && Contains(name) && Contains(words));
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  };
  refused("report", "nowhere", "does not exist");
  for (const char* command : {"hang", "merge"}) refused(command, "nowhere", "No such file");
  std::filesystem::create_directory(folder / "empty");
  for (const char* command : {"report", "hang", "merge"}) refused(command, "empty", "no *.json");
  const std::string whole = ProfiledRun().profile().dump();
  write_bytes(folder / "cut.json", whole.substr(0, 100));
  refused("report", "cut.json", "is cut at byte 100");
  write_bytes(folder / "damaged.json", whole.substr(0, 100) + "}}]" + whole.substr(100));
  refused("report", "damaged.json", "is damaged at byte");
  write_bytes(folder / "list.json", "[1]");
  refused("report", "list.json", "is no profile");
  write_bytes(folder / "newer.json", R"({"ronde_profile": 2})");
  refused("report", "newer.json", "has layout 2, and this ronde reads layout 1");
  write_bytes(folder / "types.json", R"({"ronde_profile": 1, "merged": {"seconds": "long"}})");
  refused("report", "types.json", "is no profile that this ronde can read");
  write_bytes(folder / "ranks.json", R"({"ronde_profile": 1, "ranks": 4000000000})");
  refused("report", "ranks.json", "is damaged: it is of 4000000000 ranks");
  for (const char* bytes : {"1e300", "-1"}) {
    write_bytes(folder / "bytes.json", R"({"ronde_profile": 1, "merged": {"messages": [)"
                                       R"({"up_to_bytes": )" +
                                           std::string(bytes) + "}]}}");
    refused("report", "bytes.json", std::string("it has messages of ") + bytes[0]);
  }
  write_bytes(folder / "last.json", R"({"ronde_profile": 1, "merged": {"last_ranks": [)"
                                    R"({"rank": 1e30}]}})");
  refused("report", "last.json", "it tells of rank 1e+30");
  write_bytes(folder / "dump.json", R"({"ronde_dump": 1})");
  refused("report", "dump.json", "read it with ronde prof hang");
  write_bytes(folder / "trace.json", TracedRank().text());
  refused("report", "trace.json", "is a file of a timeline: give its folder");
  std::filesystem::create_directory(folder / "dumps");
  write_bytes(folder / "dumps/rank0.json", R"({"ronde_dump": 1})");
  refused("report", "dumps", "read it with ronde prof hang");
}

TEST_CASE("compared runs show the change of each class in per cent") {
  ProfiledRun better;
  better.communicate_us = 6e3;
  better.step_us = 150e3;
  std::ostringstream out;
  ronde::prof::print_comparison({read(ProfiledRun().profile()), read(better.profile())},
                                /*fine=*/false, out);
  CHECK(first_line(out.str()) ==
        "B against A: a step takes 25 % less time (150 ms instead of 200 ms)");
  CHECK_THAT(out.str(), Contains("32-64 MB       48.00   24.00 (50 % less)"));
  CHECK_THAT(out.str(), Contains("exposed         8.00     8.00 (the same)"));
}

TEST_CASE("runs of other sizes or of other models are not compared without a warning") {
  ProfiledRun other;
  other.ranks = 4;
  std::ostringstream ranks;
  ronde::prof::print_comparison({read(ProfiledRun().profile()), read(other.profile())}, false,
                                ranks);
  CHECK_THAT(first_line(ranks.str()), StartsWith("the runs have different numbers of ranks (A 2, B "
                                                 "4): all figures are those of one rank"));
  // The step of a rank is as long, whatever their number.
  CHECK_THAT(ranks.str(), Contains("48.00 (the same)"));
  other = ProfiledRun();
  other.tensors = 53;
  other.fusion_bytes = "32MiB";
  std::ostringstream models;
  ronde::prof::print_comparison({read(ProfiledRun().profile()), read(other.profile())}, false,
                                models);
  CHECK_THAT(first_line(models.str()),
             StartsWith("these are different models: A sends 161 tensors"));
  CHECK_THAT(models.str(), Contains("RONDE_FUSION_BYTES: A=64MiB B=32MiB"));
}

}  // namespace
