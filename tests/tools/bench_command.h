// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/processes/temporary_folder.h"
#include "tests/tools/ronde_command.h"

// How tests start `ronde bench`.
namespace ronde::test {

using Words = std::vector<std::string>;

/// Runs `program bench words...` on `ranks` ranks: without a launcher if that is 0.
inline CommandResult run_bench(int ranks, const Words& words, const char* program = RONDE_COMMAND) {
  Words line;
  if (ranks > 0 && RONDE_MPI_IS_LINKED) {
    line = {RONDE_LAUNCHER, RONDE_LAUNCHER_COUNT, std::to_string(ranks)};
  }
  line.insert(line.end(), {program, "bench"});
  line.insert(line.end(), words.begin(), words.end());
  return run_program(line);
}

/// A file that is removed again.
class JsonFile {
 public:
  std::string path() const { return folder_ / "rows.json"; }
  nlohmann::json rows() const { return nlohmann::json::parse(read_text(path())); }

 private:
  TemporaryFolder folder_;
};

/// The rows of a run that must succeed.
inline nlohmann::json rows_of(int ranks, Words words, const char* iterations = "2",
                              const char* program = RONDE_COMMAND) {
  const JsonFile file;
  words.insert(words.end(), {"--iters", iterations, "--warmup", "1", "--json", file.path()});
  const auto result = ended(0, run_bench(ranks, words, program));
  CHECK(result.err.empty());
  return file.rows();
}

}  // namespace ronde::test
