// SPDX-License-Identifier: Apache-2.0
// The ranks of launchers_test.cc, started by torchrun.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/support/processes/command.h"
#include "tests/support/processes/reserved_port.h"

namespace {

using namespace ronde::test;
using Catch::Contains;

CommandResult run_torchrun(const std::string& helper, std::vector<std::string> options,
                           const ReservedPort& port) {
  std::vector<std::string> words = {RONDE_TORCHRUN, "--standalone", "--no-python",
                                    "--nproc-per-node", "2"};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back(std::filesystem::read_symlink("/proc/self/exe"));
  words.push_back(helper);
  // The port after torchrun's own might be anybody's.
  return run_program(words,
                     {{"RONDE_PORT", std::to_string(port.number())}, {"OMP_NUM_THREADS", "1"}});
}

}  // namespace

TEST_CASE("torchrun starts ranks, and again those that died") {
  const ReservedPort port;
  const std::vector<std::pair<std::string, std::vector<std::string>>> rows = {
      {"helper: a rank of a launcher", {}},
      {"helper: a rank whose first life ends before it has met the others",
       {"--max-restarts", "1"}}};
  for (const auto& [helper, options] : rows) {
    const CommandResult result = run_torchrun(helper, options, port);
    INFO(result.out << result.err);
    CHECK(result.exit_code == 0);
    for (const char* const rank : {"rank 0", "rank 1"}) {
      CHECK_THAT(result.err, Contains(std::string(rank) + " of 2 met by socket, data by shm"));
    }
  }
}
