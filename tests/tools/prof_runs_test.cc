// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
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
