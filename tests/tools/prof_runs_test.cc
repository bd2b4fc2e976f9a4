// SPDX-License-Identifier: Apache-2.0
// Two ranks with a prepared pathology each, and what `ronde prof report` says of their profile.
#include <catch2/catch.hpp>
#include <map>
#include <string>

#include "tests/support/processes/launch.h"
#include "tests/support/processes/temporary_folder.h"
#include "tests/tools/ronde_command.h"

namespace {

using namespace ronde::test;
using Catch::Contains;
using Catch::StartsWith;

/// Two ranks of the job.
void run_job(const Words& options, const std::map<std::string, std::string>& environment) {
  const CommandResult run = launch(2, options, environment);
  INFO(run.out << run.err);
  REQUIRE(run.exit_code == 0);
}

std::string report_of(const std::string& path) {
  const CommandResult report = run_command({"prof", "report", path});
  UNSCOPED_INFO(report.out << report.err);
  REQUIRE(report.exit_code == 0);
  return report.out;
}

std::string first_line_of_report(const std::string& path) {
  const std::string report = report_of(path);
  return report.substr(0, report.find('\n'));
}

/// On a machine that does other things a rank may be late as well.
void check_first_finding(const std::string& path, const std::string& begin,
                         const std::string& more) {
  const std::string report = report_of(path), first = first_line_of_report(path);
  CHECK_THAT(report, Contains(begin) && Contains(more));
  CHECK_THAT(first, StartsWith(begin) || StartsWith("rank "));
}

}  // namespace

TEST_CASE("a rank that computes longer is the first finding of a real run and of its timeline") {
  const TemporaryFolder folder;
  const std::string profile = folder / "run.json", timeline = folder / "timeline";
  run_job({"30", "slow-rank"}, {{"RONDE_PROFILE", profile}, {"RONDE_TIMELINE", timeline}});
  for (const std::string& path : {profile, timeline}) {
    CHECK_THAT(first_line_of_report(path), StartsWith("rank 1 came last for ") &&
                                               Contains(": its backward takes ") &&
                                               Contains("a step, that of the others "));
  }
}

TEST_CASE("a fusion buffer that is too small is the first finding of a real run") {
  const TemporaryFolder folder;
  const std::string profile = folder / "run.json";
  run_job({"100"}, {{"RONDE_PROFILE", profile}, {"RONDE_FUSION_BYTES", "4KiB"}});
  check_first_finding(profile, "the fusion buffer is too small: ",
                      "at RONDE_FUSION_BYTES=4KiB, each of which takes ");
}

TEST_CASE("names that change in every step are the first finding of a real run") {
  const TemporaryFolder folder;
  const std::string profile = folder / "run.json";
  run_job({"100", "new-names"}, {{"RONDE_PROFILE", profile}});
  check_first_finding(profile, "names change from step to step: ", "100 % of 51,200 operations ");
}
