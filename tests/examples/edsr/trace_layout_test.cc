// SPDX-License-Identifier: Apache-2.0
// The timeline of two ranks beside what LibTorch's own profiler writes.
#include <catch2/catch.hpp>
#include <cstdio>
#include <string>

#include "tests/examples/edsr/run.h"
#include "tests/support/processes/beside.h"

namespace edsr::testing {

TEST_CASE("timelines of two ranks have the layout of LibTorch's own profiler") {
  if (std::string(LIBTORCH_PYTHON).empty()) {
    std::puts("left out: no Python with LibTorch's profiler");
    return;
  }
  const Workspace here;
  const std::string timeline = here / "timeline";
  const auto run =
      ronde::test::launch(2, here.options("out", "--steps 20"), {{"RONDE_TIMELINE", timeline}});
  INFO(run.out << run.err);
  REQUIRE(run.exit_code == 0);
  const auto merge = ronde::test::run_program({RONDE_COMMAND, "prof", "merge", timeline});
  INFO(merge.out << merge.err);
  REQUIRE(merge.exit_code == 0);
  Words words = {LIBTORCH_PYTHON, TRACE_LAYOUT};
  for (const char* const file : {"/rank0.json", "/rank1.json", "/merged.json"}) {
    words.push_back(timeline + file);
  }
  const auto check = ronde::test::run_program(words);
  INFO(check.out << check.err);
  CHECK(check.exit_code == 0);
}

}  // namespace edsr::testing
