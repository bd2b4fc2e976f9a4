// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/tools/ronde_command.h"

using namespace ronde::test;
using Catch::Contains;
using Words = std::vector<std::string>;

TEST_CASE("ronde tune without --collectives, or with a program, says what to do instead") {
  const std::vector<Words> uses = {
      {"tune"},
      {"tune", "--", "ronde", "run", "-n", "2", "--", "./train"},
      {"tune", "--runs", "40", "--out", "tuned.json", "--", "./train", "--steps", "3"},
      {"tune", "--collectives", "--", "./train"}};
  for (const Words& words : uses) {
    const auto result = ended(2, run_command(words));
    CHECK(result.out.empty());
    CHECK_THAT(result.err, Contains("run it with RONDE_AUTOTUNE=1 and RONDE_TUNED=FILE") &&
                               Contains("start `ronde tune --collectives`"));
  }
  CHECK_THAT(run_command({"tune", "--help"}).out, Contains("RONDE_AUTOTUNE=1"));
  CHECK_THAT(ended(2, run_command({"tune", "--collectives", "--rnus", "40"})).err,
             Contains("not expected: --rnus"));
}
