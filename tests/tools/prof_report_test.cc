// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
#include <sstream>
#include <string>

#include "observe/report/report.h"
#include "tests/tools/prof_fixtures.h"
#include "tests/tools/ronde_command.h"
#include "tools/prof/report/views.h"

namespace {

using Catch::Contains;
using Catch::StartsWith;
using ronde::Phase;
using ronde::Profile;
using ronde::report_text;
using namespace ronde::test;

std::string report(const ProfiledRun& run) {
  return report_text(run.profile());
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

/// The others wait 60 ms a step for rank 1.
const ProfiledRun kSlowRank = {.step_us = 260e3,
                               .exposed_us = 62e3,
                               .late_exposed_us = 2e3,
                               .negotiate_us = 15e3,
                               .late_share = 0.93,
                               .lost_us = 60e3};
const ProfiledRun kSmallFusion = {.exposed_us = 40e3,
                                  .messages = 172,
                                  .message_bytes = 1e6,
                                  .communicate_us = 500,
                                  .fusion_bytes = "1MiB"};

TEST_CASE("nothing stands out in the profile of a healthy run, by large or by fine classes") {
  const std::string text = report(ProfiledRun());
  CHECK(first_line(text) == "nothing stands out");
  CHECK_THAT(text, !Contains("Findings"));
  for (const char* part : {"2 ranks on 1 host, 100 steps, 20.0 s", "cpu: shm", "load batch",
                           "250 MB/s", "exposed communication 8.0 ms a step, 4.0 % of it",
                           "hidden behind the program 40 ms of 48 ms",
                           "a message holds 40.2 tensors and 43 MB, 64 % of RONDE_FUSION_BYTES",
                           "32-64 MB           400     4.0  17200.0", ">64 MB"}) {
    CHECK_THAT(text, Contains(part));
  }
  CHECK_THAT(report_text(ProfiledRun().profile(), /*fine=*/true),
             Contains("to 64MiB") && !Contains(">64 MB"));
}

TEST_CASE("the first line of the report is the finding that costs most, with what to change") {
  struct Row {
    ProfiledRun run;
    std::string begin, more = {};
  };
  const std::string nothing = "nothing stands out";
  for (const auto& [run, begin, more] : std::vector<Row>{
           {kSlowRank,
            "rank 1 came last for 93 % of messages; the others waited 60 ms a step (23 %) for it: "
            "look at its data and its cores"},
           {kSmallFusion,
            "the fusion buffer is too small: 172 messages of 1.0 MB a step at "
            "RONDE_FUSION_BYTES=1MiB",
            "try RONDE_FUSION_BYTES=64MiB"},
           {{.exposed_us = 40e3, .misses = 16'100, .thaws = 0},
            "names change from step to step: ",
            "never froze; use one name in every step, or none"},
           // A short run announces its parameters once.
           {{.steps = 6, .misses = 5 * 161}, nothing},
           {{.exposed_us = 40e3, .tensors = 2000, .misses = 200e3, .thaws = 0},
            "",
            "2,060 operations a step do not fit into RONDE_CACHE_CAPACITY=1024"},
           {{.lost_us = 25e3, .late_lost_us = 24e3},
            "ranks wait for each other: rank 0 loses 25 ms a step (12 %), most of it for rank 1; "
            "look in a timeline"},
           {{.lost_us = 9.9e3, .late_lost_us = 9.9e3}, nothing},
           {{.exposed_us = 30e3, .last_bucket_bytes = 41e6, .last_lead_us = 3e3},
            "62 % of communication is exposed (30 ms of a step of 200 ms): the last bucket holds "
            "41 MB and starts 3.0 ms before backward ends; try RONDE_FUSION_BYTES=16MiB"},
           // Fewer bytes would not help here.
           {{.exposed_us = 40e3, .communicate_us = 50},
            "ranks wait 40 ms of a step of 200 ms, and communication takes only 200 us: the rest "
            "is agreement, and waiting for each other in turns; look for what differs between "
            "ranks in a timeline (RONDE_TIMELINE)"},
           {{.loading_us = 90e3},
            "the loader is the limit: span \"load batch\" takes 45 % of a step (90 ms at 11 MB/s), "
            "exposed communication 4.0 %"},
           {{.loading_us = 190e3}, nothing},  // around the whole step
           {{.thaws = 100},
            "the frozen schedule is thawed 1.0 times a step",
            "waited for a tensor whose bucket"}}) {
    const std::string line = first_line(report(run));
    CHECK_THAT(line, StartsWith(begin) && Contains(more));
  }
}

TEST_CASE("the report says what a slow rank does longer than the others") {
  Profile profile;
  profile.ranks = 2;
  for (const int rank : {0, 1}) {
    ronde::Figures figures = kSlowRank.figures(rank);
    if (rank == 1) figures.spans["load batch"].time = equal_times(100, 70e3);
    profile.add(rank, std::move(figures));
  }
  CHECK_THAT(first_line(report_text(profile)),
             Contains("its span \"load batch\" takes 70 ms a step, that of the others 4.0 ms"));
}

TEST_CASE("two ranks that are late by turns are no slow rank, nor is one by what all agree") {
  ProfiledRun by_turns = kSlowRank, agreeing = kSlowRank;
  by_turns.lost_us = 900;
  CHECK_THAT(report(by_turns), !Contains("came last for"));
  agreeing.agreement_us = agreeing.lost_us;
  CHECK_THAT(report(agreeing),
             !Contains("came last for") && !Contains("ranks wait for each other"));
  CHECK_THAT(report({.lost_us = 25e3, .late_lost_us = 24e3}),
             Contains("rank 0               25.00       12 %    rank 1  50 %") &&
                 Contains("rank 1               24.00       12 %    rank 0  50 %"));
}

TEST_CASE("only a span whose name has a word for loading is the loader") {
  for (const char* name : {"read_samples", "Load Batch", "data loader"}) {
    CHECK_THAT(report({.loading_us = 90e3, .span = name}), StartsWith("the loader is the limit: "));
  }
  for (const char* name : {"upload", "train batch", "spread"}) {
    CHECK_THAT(report({.loading_us = 90e3, .span = name}),
               StartsWith("the program itself is the limit: "));
  }
}

TEST_CASE("a longer cycle is only proposed where messages wait for more tensors") {
  ProfiledRun run = {.exposed_us = 40e3,
                     .messages = 100,
                     .message_bytes = 1e6,
                     .communicate_us = 500,
                     .scheduled = 0};
  CHECK_THAT(report(run), Contains("try RONDE_CYCLE_TIME_MS=2 instead of 1"));
  run.flushes = 90 * run.steps;
  CHECK_THAT(report(run), !Contains("RONDE_CYCLE_TIME_MS=2"));
  run.flushes = 0;
  run.scheduled = -1;
  CHECK_THAT(report(run), !Contains("RONDE_CYCLE_TIME_MS=2"));
}

TEST_CASE("what messages wait for a slow rank is not told as their cost") {
  ProfiledRun run = kSmallFusion;
  run.late_share = 0.93;
  run.lost_us = 30e3;
  run.late_exposed_us = 5e3;
  CHECK_THAT(report(run), Contains("the fusion buffer is too small") &&
                              Contains("each of which takes 15 us besides its bytes"));
}

TEST_CASE("a run that tuned itself says so, and its thaws are no finding") {
  const std::string text = report({.thaws = 60, .tuned_thaws = 60});
  CHECK(first_line(text) == "nothing stands out");
  CHECK_THAT(text, Contains("the run tuned itself: settings are those at its end") &&
                       Contains("thawed 60 times: rank 0 tries other settings"));
}

TEST_CASE("findings for programs have a kind, a cost and the figures") {
  const TemporaryFolder folder;
  write_bytes(folder / "p.json", kSlowRank.text());
  const auto result = ended(0, run_command({"prof", "report", "--json", folder / "p.json"}));
  const Json finding = Json::parse(result.out).at("findings").at(0);
  CHECK(finding.at("kind") == "slow_rank");
  CHECK(finding.at("cost_us_per_step").get<double>() == Approx(60e3));
  CHECK(finding.at("figures").at("rank") == 1);
  const Json lost = Json::parse(result.out).at("lost").at(0);
  CHECK(lost.at("rank") == 0);
  CHECK(lost.at("us_per_step").get<double>() == Approx(60e3));
  CHECK(lost.at("share_of_step").get<double>() == Approx(60.0 / 260));
}

TEST_CASE("the files that ranks of a failed run left are joined") {
  const TemporaryFolder folder;
  ProfiledRun run;
  run.ranks = 3;
  run.failure = "rank 2 died";
  for (const int rank : {0, 1}) {
    write_bytes(folder / ("p.rank" + std::to_string(rank) + ".json"), run.text(rank));
  }
  for (const auto& path : {folder / "p.json", folder.path()}) {
    const Profile joined = ronde::prof::read_run(path);
    CHECK(joined.merged.samples == 3200);
    const std::string text = report_text(joined);
    CHECK(first_line(text) == "the run failed: rank 2 died");
    CHECK_THAT(text, Contains("without the figures of rank 2"));
    CHECK_THAT(text, Contains("32-64 MB           400     4.0  17200.0"));
  }
}

TEST_CASE("of a whole run's profile and those of a failed one the newer is shown, and told") {
  const TemporaryFolder folder;
  ProfiledRun run;
  write_bytes(folder / "p.json", run.text());
  run.failure = "rank 1 died";
  write_bytes(folder / "p.rank0.json", run.text(0));
  const auto now = std::filesystem::last_write_time(folder / "p.json");
  const auto hour = std::chrono::hours(1);
  const bool failed = GENERATE(true, false);
  std::filesystem::last_write_time(folder / "p.rank0.json", failed ? now + hour : now - hour);
  for (const auto& path : {folder / "p.json", folder.path()}) {
    const std::string text = report_text(ronde::prof::read_run(path));
    CHECK(first_line(text) == (failed ? "the run failed: rank 1 died" : "nothing stands out"));
    CHECK_THAT(text, Contains((failed ? "p.json is older than " : "p.rank0.json is older than ")) &&
                         Contains("it is of an earlier run, and left out"));
  }
}

TEST_CASE("a timeline ends with its rank's figures, which one that was killed lacks") {
  const TemporaryFolder folder;
  const bool was_killed = GENERATE(false, true);
  TracedRank{.rank = 0, .was_killed = was_killed}.write(folder);
  CHECK_THAT(
      run_command({"prof", "report", folder.path()}).err,
      was_killed ? Contains("has no figures, which ranks write at their end") : Contains(""));
  TracedRank{.rank = 1}.write(folder);
  const Profile run = ronde::prof::read_run(folder.path());
  const std::uint64_t measured = was_killed ? 1 : 2;
  const std::int64_t ms = was_killed ? kMs : 2 * kMs;
  CHECK(run.ranks == 2);
  CHECK(run.merged.samples == 32 * measured);
  CHECK(run.merged.exposed.total_ns() == 10 * ms);
  CHECK(run.merged.last_bucket_lead_ns == 5 * ms);
  const auto& large = run.merged.messages.at(26);
  CHECK(large.count == measured);
  CHECK(large.phase(Phase::Communicate).largest_ns() == 15 * kMs);
  CHECK(large.phase(Phase::Negotiate).largest_ns() == 4 * kMs);
  CHECK(run.merged.last_ranks.at(1).lost_ns == 4 * ms);
  // Bucket 17 of a process set is another one.
  const auto& of_set = run.merged.messages.at(12);
  CHECK(of_set.phase(Phase::Communicate).largest_ns() == 2 * kMs);
  CHECK(of_set.phase(Phase::Negotiate).count() == 0);
  const std::string text = report_text(run);
  CHECK_THAT(text, Contains("What ranks lost by waiting for late ones"));
  CHECK((text.find("without the figures of rank 0") != std::string::npos) == was_killed);
  CHECK((text.find("rank 0's file has no figures") != std::string::npos) == was_killed);
}

TEST_CASE("the page holds the data of each run and needs no other file") {
  const TemporaryFolder folder;
  ProfiledRun run = kSlowRank;
  run.failure = "</script><!--<script>";
  std::filesystem::create_directory(folder / "runs");
  write_bytes(folder / "runs/a.json", run.text());
  run.failure.clear();
  run.ranks = 4;
  write_bytes(folder / "runs/b.json", run.text());
  write_bytes(folder / "runs/c.json", ProfiledRun().text());
  const std::string page = folder / "page.html";
  const auto result = ended(0, run_command({"prof", "report", "--html", page, folder / "runs"}));
  const std::string text = read_text(page);
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
  CHECK(run_command({"prof", "report", "--html", "/nowhere/x", folder / "runs"}).exit_code == 2);
}

TEST_CASE("input that cannot be read is told in a line, with exit code 2") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& command, const std::string& name,
                           const std::string& words) {
    const auto result = ended(2, run_command({"prof", command, folder / name}));
    CHECK(result.out.empty());
    CHECK_THAT(result.err, StartsWith("ronde prof: ") && Contains(name) && Contains(words));
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  };
  refused("report", "nowhere", "does not exist");
  for (const char* command : {"hang", "merge"}) refused(command, "nowhere", "No such file");
  std::filesystem::create_directory(folder / "empty");
  for (const char* command : {"report", "hang", "merge"}) refused(command, "empty", "no *.json");
  const std::string whole = ProfiledRun().text();
  write_bytes(folder / "cut.json", whole.substr(0, 100));
  refused("report", "cut.json", "is cut at byte 100");
  const std::size_t world = whole.find("\"world\"");
  write_bytes(folder / "damaged.json", whole.substr(0, world) + "}}]" + whole.substr(world));
  refused("report", "damaged.json", "is damaged at byte");
  write_bytes(folder / "huge.json", "{\"ronde_profile\": 1e999}");
  refused("report", "huge.json", "number overflow");
  write_bytes(folder / "list.json", "[1]");
  refused("report", "list.json", "is no profile");
  const auto refused_with = [&](const std::string& part, const std::string& other,
                                const std::string& words) {
    std::string text = whole;
    text.replace(text.rfind(part), part.size(), other);
    write_bytes(folder / "other.json", text);
    refused("report", "other.json", words);
  };
  refused_with("\"ronde_profile\":1", "\"ronde_profile\":2",
               "has layout 2, and this ronde reads layout 1");
  refused_with(
      "\"seconds\":", "\"seconds\":\"long\",\"x\":", "is no profile that this ronde can read");
  refused_with("\"ranks\":2", "\"ranks\":4000000000", "it has rank 4000000000");
  for (const char* bytes : {"1e300", "-1", "0", "5"}) {
    refused_with("\"up_to_bytes\":67108864", "\"up_to_bytes\":" + std::string(bytes), "it has ");
  }
  refused_with("\"rank\":1,\"count\":", "\"rank\":1e30,\"count\":", "it has rank 1e+30");
  refused_with("\"lost_us\":", "\"lost_us\":1e300,\"x\":", "it has a time of ");
  TracedRank().write(folder);
  refused("report", "rank0.json", "is a file of a timeline: give its folder");
  std::filesystem::create_directory(folder / "dumps");
  write_bytes(folder / "dumps/rank0.json", to_json(ronde::RankSnapshot(), "request", "").dump());
  for (const char* path : {"dumps", "dumps/rank0.json"}) {
    refused("report", path, "read it with ronde prof hang");
  }
}

std::string comparison(const ProfiledRun& with) {
  std::ostringstream out;
  ronde::prof::print_comparison({ProfiledRun().profile(), with.profile()}, /*fine=*/false, out);
  return out.str();
}

TEST_CASE("compared runs show the change of each class in per cent, and warn of other runs") {
  CHECK_THAT(comparison({.step_us = 150e3, .communicate_us = 6e3}),
             StartsWith("B against A: a step takes 25 % less time (150 ms instead of 200 ms)\n") &&
                 Contains("32-64 MB       48.00   24.00 (50 % less)") &&
                 Contains("exposed         8.00     8.00 (the same)"));
  // The step of a rank is as long, whatever their number.
  CHECK_THAT(comparison({.ranks = 4}),
             StartsWith("the runs have different numbers of ranks (A 2, B 4): all figures are "
                        "those of one rank") &&
                 Contains("48.00 (the same)"));
  CHECK_THAT(comparison({.tensors = 53, .fusion_bytes = "32MiB"}),
             StartsWith("these are different models: A sends 161 tensors") &&
                 Contains("RONDE_FUSION_BYTES: A=64MiB B=32MiB"));
}

TEST_CASE("runs of other frameworks stand beside Ronde's by speed, memory, waits and loss") {
  const TemporaryFolder folder;
  Profile own = ProfiledRun().profile();
  own.merged.series["loss"].add(10, 0.5);
  own.merged.peak_bytes = 200'000'000;
  own.per_rank.at(0) = own.merged;
  write_bytes(folder / "ronde.json", to_json(own).dump());
  // 3,200 samples in 25 s are 128 a second, as many in 20 s of Ronde's profile 160.
  const std::string ddp =
      R"({"run_report": {"framework": "DDP", "ranks": 2, "steps": 100, "samples": 3200,
          "seconds": 25, "waiting_s": 5, "peak_bytes": 300000000,
          "series": {"loss": [[1, 2.5], [16, 0.75], [20, null]]}}})";
  write_bytes(folder / "ddp.json", ddp);
  const auto compare = [&](const std::string& text) {
    write_bytes(folder / "other.json", text);
    return run_command({"prof", "compare", folder / "ronde.json", folder / "other.json"});
  };
  const std::string out = ended(0, compare(ddp)).out;
  for (const char* line :
       {"  A Ronde      2      160.0  100 %              200.0             4.0 %",
        "  B DDP        2      128.0   80 %              300.0              20 %",
        "after 5.0 s     -  2.5", "after 15.0 s  0.5  2.5", "after 20.0 s  0.5  nan",
        "B against A: a step takes 25 % more time (250 ms instead of 200 ms)"}) {
    CHECK_THAT(out, Contains(line));
  }
  CHECK_THAT(out, !Contains("RONDE_") && !Contains("different models") && !Contains("lacks"));
  const std::string of_rank_0 = ProfiledRun().text(0);
  CHECK(of_rank_0.find("run_report") == std::string::npos);
  CHECK_THAT(ended(0, compare(of_rank_0)).out,
             Contains("B lacks the figures, and so the samples, of rank 1"));
  const auto refused = [&](const std::string& part, const std::string& instead,
                           const std::string& words) {
    std::string text = ddp;
    text.replace(text.find(part), part.size(), instead);
    const auto result = ended(2, compare(text));
    CHECK_THAT(result.err, Contains("other.json") && Contains(words));
  };
  refused("\"seconds\": 25", "\"seconds\": 0", "have to be positive");
  refused("\"steps\": 100", "\"steps\": 0", "have to be positive");
  refused("\"ranks\": 2", "\"ranks\": 0", "have to be positive");
  refused("\"samples\": 3200", "\"samples\": -1", "it has -1 in place of a count");
  refused("\"samples\"", "\"images\"", "'samples' not found");
  refused("\"waiting_s\": 5", "\"waiting_s\": 26", "within \"seconds\"");
  refused("[16, 0.75]", "[21, 0.75]", "ascending");
  refused("[16, 0.75]", "[16]", "out of range");
  refused("[[1, 2.5], [16, 0.75], [20, null]]", "[]", "without a point");
  CHECK_THAT(ended(2, run_command({"prof", "report", folder / "ddp.json"})).err,
             Contains("is a run report of DDP: read it with ronde prof compare"));
}

}  // namespace
