// SPDX-License-Identifier: Apache-2.0
// The rows of the table, on ranks that are processes.
#include <catch2/catch.hpp>
#include <sstream>

#include "ronde/ronde.h"
#include "tests/support/oracle/plain_mpi.h"
#include "tests/support/oracle/table.h"

namespace ronde::test {
namespace {

/// As every rank has them.
std::vector<Table::Outcomes> gather(PlainMpi& mpi, const Table::Outcomes& own) {
  std::string lines;
  for (const std::string& outcome : own) {
    lines += outcome;
    lines += '\0';
  }
  std::vector<Table::Outcomes> all;
  for (const std::string& of_rank : mpi.gather(lines)) {
    Table::Outcomes& outcomes = all.emplace_back();
    std::istringstream text(of_rank);
    for (std::string outcome; std::getline(text, outcome, '\0');) outcomes.push_back(outcome);
  }
  return all;
}

/// Fails on every rank, or on none. Rank 0 says why, before another rank fails.
void check_rows(PlainMpi& mpi, const std::string& backend) {
  const Table table(backend, mpi.size());
  const std::vector<Table::Outcomes> outcomes = gather(mpi, table.run(default_runtime(), true));
  if (mpi.rank() == 0) {
    table.check(outcomes, RONDE_TEST_LAUNCHER " " + std::to_string(mpi.size()) + " ");
  }
  mpi.barrier();
  const bool all_right = std::ranges::all_of(outcomes, [](const Table::Outcomes& of_rank) {
    return std::ranges::all_of(of_rank, &std::string::empty);
  });
  if (mpi.rank() != 0 && !all_right) FAIL_CHECK("rows are wrong: rank 0 lists them");
}

}  // namespace

TEST_CASE("all rows over MPI") {
  with_group([](PlainMpi& mpi) { check_rows(mpi, "mpi"); }, {{"RONDE_CPU_BACKEND", "mpi"}});
}

// Of fewer ranks no two would share one of the two hosts.
TEST_CASE("all rows on two hosts", "[n3][n4]") {
  const auto size = static_cast<std::size_t>(PlainMpi::instance().size());
  with_hosts(std::string("abab").substr(0, size),
             [](PlainMpi& mpi) { check_rows(mpi, "hierarchical"); });
}

}  // namespace ronde::test
