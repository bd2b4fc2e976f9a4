// SPDX-License-Identifier: Apache-2.0
#include "ronde/log.h"

#include <catch2/catch.hpp>

#include "tests/support/harness/captured_errors.h"
#include "tests/support/ranks/ranks.h"

namespace {

using ronde::Logger;
using ronde::LogLevel;
using ronde::test::CapturedErrors;

std::vector<std::string> lines_of(const CapturedErrors& errors) {
  std::istringstream in(errors.text());
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// The line without its time of day.
std::string text_of(const std::string& line) {
  return line.substr(line.find('['));
}

TEST_CASE("a log line names the level, and the rank once it is known") {
  const CapturedErrors errors;
  Logger log(LogLevel::Info);
  log.info("early");
  log.set_rank(3);
  log.warning("a thing");
  log.set_rank(12);
  log.error("another {} %v");
  const std::vector<std::string> lines = lines_of(errors);
  REQUIRE(lines.size() == 3);
  CHECK(text_of(lines[0]) == "[ronde] info: early");
  CHECK(text_of(lines[1]) == "[ronde rank 3] warning: a thing");
  CHECK(text_of(lines[2]) == "[ronde rank 12] error: another {} %v");
  CHECK_THAT(lines[0], Catch::Matches(R"(\d\d:\d\d:\d\d\.\d\d\d \[.*)"));
}

TEST_CASE("the threshold decides what is written") {
  const CapturedErrors errors;
  const Logger log(LogLevel::Warning, 0);
  log.info("no");
  log.debug("no");
  log.trace("no");
  CHECK(errors.text().empty());
  CHECK_FALSE(log.enabled(LogLevel::Info));
  CHECK(log.enabled(LogLevel::Error));
  Logger(LogLevel::Trace).trace("yes");
  CHECK(lines_of(errors).size() == 1);
  const Logger silent(LogLevel::Off);
  silent.error("no");
  silent.log(LogLevel::Off, "no");
  CHECK(lines_of(errors).size() == 1);
  CHECK_FALSE(silent.enabled(LogLevel::Error));
}

TEST_CASE("threads may log while the rank changes") {
  const CapturedErrors errors;
  Logger log(LogLevel::Info);
  ronde::test::run_ranks(4, [&](int thread) {
    for (int i = 0; i < 200; ++i) thread == 3 ? log.set_rank(i) : log.info("line");
  });
  CHECK(lines_of(errors).size() == 600);
}

}  // namespace
