// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/command.h"

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

/// A file of this process that is removed again.
class JsonFile {
 public:
  JsonFile()
      : path_(std::filesystem::temp_directory_path() /
              ("ronde-bench-" + std::to_string(::getpid()) + ".json")) {}
  ~JsonFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  std::string path() const { return path_.string(); }
  nlohmann::json rows() const {
    std::ifstream file(path_);
    REQUIRE(file);
    return nlohmann::json::parse(file);
  }

 private:
  std::filesystem::path path_;
};

/// The rows of a run that must succeed.
inline nlohmann::json rows_of(int ranks, Words words, const char* iterations = "2",
                              const char* program = RONDE_COMMAND) {
  const JsonFile file;
  words.insert(words.end(), {"--iters", iterations, "--warmup", "1", "--json", file.path()});
  const CommandResult result = run_bench(ranks, words, program);
  INFO(result.out << result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.err.empty());
  return file.rows();
}

}  // namespace ronde::test
