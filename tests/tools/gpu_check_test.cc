// SPDX-License-Identifier: Apache-2.0
// The command lines of scripts/gpu_check.sh, which needs a GPU: that none of them is refused.
#include "bench_command.h"
#include "tests/support/gpu_check_lines.h"
#include "tests/support/temporary_folder.h"
#include "tools/bench/gradient_lists.h"

using Catch::Contains;
using namespace ronde::test;

TEST_CASE("gpu_check: every command line for a GPU is understood, and set-ups run on fake ones") {
  const TemporaryFolder folder;
  int benches = 0;
  int setups = 0;
  int packs = 0;
  for (const GpuCheckLine& each : gpu_check_lines(GPU_CHECK, folder / "report.txt")) {
    if (each.program == "gpu_pack") {
      ++packs;
      REQUIRE(each.words.size() == 1);
      CHECK_NOTHROW(ronde::tool::gradient_list(each.words.front()));
    }
    if (each.program != "ronde") continue;
    ++benches;
    REQUIRE(each.words.front() == "bench");
    Words words(each.words.begin() + 1, each.words.end());
    const CommandResult result = run_bench(0, words);
    INFO(words.front() << ": " << result.out << result.err);
    // Nothing is wrong with it but that there is no driver. On a GPU it runs.
    if (result.exit_code != 0) CHECK_THAT(result.err, Contains("libcuda.so.1"));
    if (words.front() != "setups") continue;
    ++setups;
    // Smaller, as the fake is slow.
    for (std::string& word : words) {
      if (word == "64MiB" || word == "32KiB") word = "4KiB";
      if (word == "edsr-full") word = "edsr";
    }
    words.insert(words.end(), {"--iters", "1", "--warmup", "0"});
    const CommandResult faked = run_bench(1, words, FAKE_GPU_BENCH);
    INFO(faked.out << faked.err);
    CHECK(faked.exit_code == 0);
  }
  CHECK(benches > setups);
  CHECK(setups > 0);
  CHECK(packs > 0);
}

TEST_CASE("gpu_check: a stage that there is not is refused before anything is done") {
  const CommandResult result = run_program({GPU_CHECK, "machine", "nonsense"});
  CHECK(result.exit_code == 2);
  CHECK_THAT(result.err, Contains("nonsense") && Contains("sanitize"));
}
