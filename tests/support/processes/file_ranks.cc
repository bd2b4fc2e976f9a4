// SPDX-License-Identifier: Apache-2.0
#include "tests/support/processes/file_ranks.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "tests/support/processes/temporary_folder.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {
namespace {

namespace fs = std::filesystem;

/// A key is a file's name, with '/' as '_'.
fs::path file_of(const std::string& key) {
  std::string name = key;
  std::replace(name.begin(), name.end(), '/', '_');
  return fs::path(started_with("START_STORE")) / name;
}

/// Written beside it and renamed, so that a file is never seen half written.
void put(const std::string& key, const std::string& value) {
  const fs::path file = file_of(key);
  const fs::path beside = file.string() + ".new";
  std::ofstream(beside) << value;
  fs::rename(beside, file);
}

std::optional<std::string> get(const std::string& key) {
  std::ifstream file(file_of(key));
  if (!file) return std::nullopt;
  return std::string{std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::string started_with(const char* variable) {
  const char* const value = std::getenv(variable);
  if (value == nullptr) throw std::runtime_error(std::string(variable) + " is not set");
  return value;
}

KeyValueStart start_by_files() {
  const int rank = std::stoi(started_with("START_RANK"));
  const int size = std::stoi(started_with("START_SIZE"));
  return {.rank = rank, .size = size, .local_rank = rank, .put = put, .get = get};
}

std::vector<CommandResult> run_file_ranks(int size, const std::string& helper,
                                          std::map<std::string, std::string> variables) {
  const TemporaryFolder store;
  variables["START_STORE"] = store.path().string();
  variables["START_SIZE"] = std::to_string(size);
  std::vector<CommandResult> results(static_cast<std::size_t>(size));
  run_ranks(size, [&](int rank) {
    std::map<std::string, std::string> own = variables;
    own["START_RANK"] = std::to_string(rank);
    results[static_cast<std::size_t>(rank)] = run_program({"/proc/self/exe", helper}, own);
  });
  return results;
}

}  // namespace ronde::test
