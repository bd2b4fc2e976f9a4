// SPDX-License-Identifier: Apache-2.0
// The rows of the table that go over MPI. Starting mpiexec for each of them would take minutes: it
// is started once for each number of ranks, which runs all rows for it and keeps what became of
// each; a row's own test looks that up. CTest runs the former before (a fixture).
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>

#include "plain_mpi.h"
#include "ronde/ronde.h"
#include "table.h"
#include "tests/support/case_table.h"

namespace ronde::test {
namespace {

std::filesystem::path results_of(int size) {
  const char* const folder = std::getenv("RONDE_ORACLE_RESULTS");
  if (folder == nullptr) throw std::runtime_error("RONDE_ORACLE_RESULTS is not set: run by ctest");
  return std::filesystem::path(folder) / ("of_" + std::to_string(size) + ".txt");
}

/// What any rank finds wrong, in one line.
std::string outcome_on_all_ranks(PlainMpi& mpi, const std::string& wrong_here) {
  std::string text = wrong_here.empty() ? "" : "rank " + std::to_string(mpi.rank()) + ": ";
  text += wrong_here + (wrong_here.empty() ? "" : "; ");
  text.resize(200, '\0');
  std::string line;
  for (const std::byte byte : mpi.gather(std::as_bytes(std::span(text)))) {
    const char c = static_cast<char>(byte);
    if (c != '\0') line += c == '\n' || c == '\t' ? ' ' : c;
  }
  return line;
}

/// By the name of the row.
using Outcomes = std::map<std::string, std::string>;

void run_rows(PlainMpi& mpi, const std::string& backend, Outcomes& outcomes) {
  Runtime& runtime = default_runtime();
  std::map<Members, ProcessSet> sets;
  for (const Row& row : rows_on(backend)) {
    if (row.size != mpi.size()) continue;
    if (!sets.contains(row.members)) sets[row.members] = make_set(runtime, row.members);
    std::string wrong;
    try {
      wrong = outcome_of(row, runtime, sets.at(row.members));
    } catch (const UsageError& error) {
      wrong = error.what();  // the group goes on
    }
    outcomes[name_of(row)] = outcome_on_all_ranks(mpi, wrong);
  }
}

std::string kept_outcome(const Row& row) {
  std::ifstream file(results_of(row.size));
  const std::string name = name_of(row);
  for (std::string line; std::getline(file, line);) {
    const auto tab = line.find('\t');
    if (line.substr(0, tab) == name) return line.substr(tab + 1);
  }
  return "it was not run, or not to its end";
}

/// Of fewer ranks no two would share one of the two hosts.
constexpr int kLeastOnTwoHosts = 3;

[[maybe_unused]] const bool kRegistered = [] {
  for (const char* const backend : {"mpi", "hierarchical"}) {
    for (const Row& row : rows_on(backend)) {
      if (row.backend == "hierarchical" && row.size < kLeastOnTwoHosts) continue;
      add_case(name_of(row), "", [row] { CHECK(kept_outcome(row).empty()); });
    }
  }
  return true;
}();

}  // namespace

TEST_CASE("all rows for this number of ranks", "[.][run]") {
  PlainMpi& mpi = PlainMpi::instance();
  const std::filesystem::path path = results_of(mpi.size());
  if (mpi.rank() == 0) std::filesystem::remove(path);
  Outcomes outcomes;
  with_group([&](PlainMpi&) { run_rows(mpi, "mpi", outcomes); }, {{"RONDE_CPU_BACKEND", "mpi"}});
  if (mpi.size() >= kLeastOnTwoHosts) {
    const std::string hosts = std::string("abab").substr(0, static_cast<std::size_t>(mpi.size()));
    with_hosts(hosts, [&](PlainMpi&) { run_rows(mpi, "hierarchical", outcomes); });
  }
  if (mpi.rank() != 0) return;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path);
  for (const auto& [name, wrong] : outcomes) file << name << '\t' << wrong << '\n';
  file.close();
  CHECK(file);
}

}  // namespace ronde::test
