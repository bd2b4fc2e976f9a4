// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/processes/launch.h"
#include "tests/support/processes/temporary_folder.h"
#include "tests/tools/ronde_command.h"

namespace {

using namespace ronde::test;
using Catch::Contains;
using Catch::StartsWith;
using Json = nlohmann::ordered_json;

std::string first_line_of_report(const std::string& path) {
  const std::string report = ended(0, run_command({"prof", "report", path})).out;
  return report.substr(0, report.find('\n'));
}

Json lost_of_ranks(const std::string& path) {
  const auto report = ended(0, run_command({"prof", "report", "--json", path}));
  return Json::parse(report.out).at("lost");
}

}  // namespace

TEST_CASE("waits for a slow rank, or for ranks by turns, are the first finding of a real run") {
  const bool by_turns = GENERATE(false, true);
  const TemporaryFolder folder;
  const std::string profile = folder / "run.json", timeline = folder / "timeline";
  ended(0, launch(2, {"40", by_turns ? "turns" : "slow-rank"},
                  {{"RONDE_PROFILE", profile}, {"RONDE_TIMELINE", timeline}}));
  for (const std::string& path : {profile, timeline}) {
    const std::string first = first_line_of_report(path);
    if (by_turns) {
      CHECK_THAT(first, StartsWith("ranks wait for each other: rank "));
      continue;
    }
    CHECK_THAT(first, StartsWith("rank 1 came last for ") && Contains(": its backward takes ") &&
                          Contains("a step, that of the others "));
    const Json lost = lost_of_ranks(path).at(0);
    CHECK((lost.at("rank") == 0 && lost.at("most_for") == "rank 1"));
    CHECK(lost.at("share_of_step") < 1);
  }
  // No rank has lost more than it waited, nor waited more than its steps took.
  const Json ranks = Json::parse(read_text(profile)).at("per_rank");
  for (const Json& rank : ranks) {
    double lost_us = 0;
    for (const Json& last : rank.at("last_ranks")) lost_us += last.at("lost_us").get<double>();
    const Json& steps = rank.at("steps");
    CHECK(lost_us > 0);
    CHECK(lost_us <= steps.at("exposed").at("total_us").get<double>() * 1.001);
    CHECK(steps.at("exposed").at("total_us") <= steps.at("time").at("total_us"));
  }
  const Json of_profile = lost_of_ranks(profile), of_timeline = lost_of_ranks(timeline);
  for (std::size_t i = 0; i < of_profile.size(); ++i) {
    CHECK(of_timeline.at(i).at("us_per_step").get<double>() ==
          Approx(of_profile.at(i).at("us_per_step").get<double>()).epsilon(0.01).margin(100));
  }
}

TEST_CASE("a small fusion buffer, and names that change, are findings of a real run") {
  struct Row {
    const char *names, *fusion_bytes, *begin, *more;
  };
  for (const Row& row : {Row{"", "4KiB", "the fusion buffer is too small: ",
                             "at RONDE_FUSION_BYTES=4KiB, each of which takes "},
                         Row{"new-names", "64MiB",
                             "names change from step to step: ", "100 % of 51,200 operations "}}) {
    const TemporaryFolder folder;
    const std::string profile = folder / "run.json";
    ended(0, launch(2, {"100", row.names},
                    {{"RONDE_PROFILE", profile}, {"RONDE_FUSION_BYTES", row.fusion_bytes}}));
    const auto report = ended(0, run_command({"prof", "report", profile}));
    CHECK_THAT(report.out, Contains(row.begin) && Contains(row.more));
  }
}

TEST_CASE(
    "a run report has the rate of the program's clock, the kernel's peak of memory, the loss") {
  const TemporaryFolder folder;
  const std::string profile = folder / "run.json", timeline = folder / "timeline";
  constexpr int kSteps = 30;
  // VmHWM may fall: Linux adds up pages that each core has counted, in batches.
  constexpr std::uint64_t kKernelsError = 8 << 20;
  const auto job = ended(0, launch(2, {std::to_string(kSteps)},
                                   {{"RONDE_PROFILE", profile}, {"RONDE_TIMELINE", timeline}}));
  const Json all = Json::parse(read_text(profile));
  const Json& report = all.at("run_report");
  CHECK(report.at("samples") == 2 * 8 * (kSteps - 1));
  CHECK(report.at("steps") == kSteps - 1);
  double least_s = 0, most_s = 0;
  std::uint64_t peak = 0;
  for (const Json& figures : all.at("per_rank")) {
    double least = 0, most = 0;
    unsigned long before = 0, after = 0;
    const std::string name = "rank " + figures.at("rank").dump() + ":";
    const std::size_t at = job.out.find(name);
    REQUIRE(at != std::string::npos);
    REQUIRE(std::sscanf(job.out.c_str() + at + name.size(), " %lf to %lf s, %lu to %lu kB", &least,
                        &most, &before, &after) == 4);
    least_s += least / 2;
    most_s += most / 2;
    const std::uint64_t bytes = figures.at("peak_bytes");
    CHECK(bytes + kKernelsError >= before * 1024);
    CHECK(bytes <= after * 1024 + kKernelsError);
    // The 96 MiB that it had in between are not resident at the end.
    CHECK(bytes >= std::uint64_t{96} << 20);
    peak = std::max(peak, bytes);
  }
  CHECK(report.at("peak_bytes") == peak);
  CHECK(report.at("seconds") >= least_s * (1 - 1e-6));
  CHECK(report.at("seconds") <= most_s * (1 + 1e-6));
  const Json& loss = report.at("series").at("loss");
  REQUIRE(loss.size() == kSteps);
  for (std::size_t i = 0; i < loss.size(); ++i) {
    CHECK(loss.at(i).at(1) == 1.0 / (static_cast<double>(i) + 1));
    if (i > 0) CHECK(loss.at(i).at(0) > loss.at(i - 1).at(0));
  }
  CHECK_THAT(read_text(timeline + "/rank1.json"),
             Contains(R"("name":"loss","args":{"value":0.5})"));
  CHECK_THAT(ended(0, run_command({"prof", "compare", profile, timeline})).out,
             Contains("A Ronde") && Contains("loss") && Contains("0.03333"));
}
