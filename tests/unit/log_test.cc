// SPDX-License-Identifier: Apache-2.0
#include "ronde/log.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "ronde/error.h"
#include "tests/support/ranks.h"

namespace {

using ronde::Logger;
using ronde::LogLevel;

struct Lines {
  std::vector<std::string> lines;
  ronde::LogSink sink() {
    return [this](std::string_view line) { lines.emplace_back(line); };
  }
};

/// The line without its time of day.
std::string text_of(const std::string& line) {
  return line.substr(line.find('['));
}

TEST_CASE("a log line names the level, and the rank once it is known") {
  Lines out;
  Logger log(LogLevel::Info, -1, out.sink());
  log.info("early");
  log.set_rank(3);
  log.warning("a thing");
  log.set_rank(12);
  log.error("another {} %v");
  REQUIRE(out.lines.size() == 3);
  CHECK(text_of(out.lines[0]) == "[ronde] info: early");
  CHECK(text_of(out.lines[1]) == "[ronde rank 3] warning: a thing");
  CHECK(text_of(out.lines[2]) == "[ronde rank 12] error: another {} %v");
  CHECK_THAT(out.lines[0], Catch::Matches(R"(\d\d:\d\d:\d\d\.\d\d\d \[.*)"));
}

TEST_CASE("the threshold decides what is written") {
  Lines out;
  Logger log(LogLevel::Warning, 0, out.sink());
  log.info("no");
  log.debug("no");
  log.trace("no");
  CHECK(out.lines.empty());
  CHECK_FALSE(log.enabled(LogLevel::Info));
  CHECK(log.enabled(LogLevel::Error));
  log.set_threshold(LogLevel::Trace);
  log.trace("yes");
  CHECK(out.lines.size() == 1);
  log.set_threshold(LogLevel::Off);
  log.error("no");
  log.log(LogLevel::Off, "no");
  CHECK(out.lines.size() == 1);
  CHECK_FALSE(log.enabled(LogLevel::Error));
}

TEST_CASE("a sink that throws harms nobody") {
  Logger log(LogLevel::Info, 0, [](std::string_view) { throw 1; });
  log.info("lost");
  log.info("lost too");
  SUCCEED("logging never throws");
}

TEST_CASE("threads may log while the rank changes") {
  Lines out;
  Logger log(LogLevel::Info, -1, out.sink());
  ronde::test::run_ranks(4, [&](int thread) {
    for (int i = 0; i < 200; ++i) thread == 3 ? log.set_rank(i) : log.info("line");
  });
  CHECK(out.lines.size() == 600);
}

TEST_CASE("log levels are parsed by their names alone, in any case of letters") {
  CHECK(ronde::parse_log_level("DEBUG") == LogLevel::Debug);
  CHECK(ronde::parse_log_level("Trace") == LogLevel::Trace);

  for (const auto level : {LogLevel::Trace, LogLevel::Debug, LogLevel::Info, LogLevel::Warning,
                           LogLevel::Error, LogLevel::Off}) {
    CHECK(ronde::parse_log_level(to_string(level)) == level);
  }
  for (const char* text : {"", "warn", "informed", "info ", "3"}) {
    CHECK_THROWS_AS(ronde::parse_log_level(text), ronde::UsageError);
  }
}

}  // namespace
