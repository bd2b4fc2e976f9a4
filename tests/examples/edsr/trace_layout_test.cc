// SPDX-License-Identifier: Apache-2.0
// The timeline of two ranks beside what LibTorch's own profiler writes.
#include <catch2/catch.hpp>
#include <cstdio>
#include <string>

#include "tests/examples/edsr/run.h"
#include "tests/tools/ronde_command.h"

namespace edsr::testing {

TEST_CASE("timelines of two ranks have the layout of LibTorch's own profiler") {
  if (std::string(LIBTORCH_PYTHON).empty()) {
    std::puts("left out: no Python with LibTorch's profiler");
    return;
  }
  const Workspace here;
  const std::string timeline = here / "timeline";
  ronde::test::ended(
      0, ronde::test::launch(2, here.options("out", "--steps 20"), {{"RONDE_TIMELINE", timeline}}));
  ronde::test::ended(0, ronde::test::run_command({"prof", "merge", timeline}));
  Words words = {LIBTORCH_PYTHON, TRACE_LAYOUT};
  for (const char* const file : {"/rank0.json", "/rank1.json", "/merged.json"}) {
    words.push_back(timeline + file);
  }
  ronde::test::ended(0, ronde::test::run_program(words));
}

}  // namespace edsr::testing
