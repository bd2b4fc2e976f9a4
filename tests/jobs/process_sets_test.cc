// SPDX-License-Identifier: Apache-2.0
// Process sets over mpiexec: every collective in every subset, as rows of the oracle.
#include <catch2/catch.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "ronde/ronde.h"
#include "tests/support/oracle/forms.h"
#include "tests/support/oracle/oracle.h"
#include "tests/support/oracle/plain_mpi.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {
namespace {

void check_row(const Row& row, const Place& place) {
  const std::string wrong = run_row(row, default_runtime(), place);
  check(wrong.empty(), std::string(to_string(row.kind)) + " " + std::string(to_string(row.dtype)) +
                           " " + std::string(to_string(row.op)) + ": " + wrong);
}

void check_all(const Place& place) {
  const bool has_all_ranks = place.size() == ronde::size();
  for (const DataType dtype : kAllDataTypes) {
    if (has_all_ranks) {
      const std::string wrong = run_rows(dtype, default_runtime(), place);
      check(wrong.empty(), wrong);
    }
    for (const ReduceOp op : ops_of(dtype)) {
      check_row({.kind = Collective::Allreduce, .dtype = dtype, .op = op, .width = 335}, place);
    }
  }
  check_row({.kind = Collective::Reducescatter, .op = ReduceOp::Average, .width = 301}, place);
  // Larger than the fusion buffer of 4 KiB.
  for (int root = 0; root < place.size(); ++root) {
    check_row({.kind = Collective::Broadcast, .root = root, .width = 2001}, place);
  }
  check_row({.kind = Collective::Allgather, .width = 1001}, place);
  check_row({.kind = Collective::Alltoall, .width = 1001}, place);
  if (place.size() > 1) {
    check_row({.kind = Collective::Send, .in_place = true, .width = 25'000}, place);
  }
  Request barrier;
  barrier.kind = Collective::Barrier;
  barrier.set = place.set;
  ronde::run(barrier);
}

/// All subsets, and one whose order is not that of the group.
std::vector<std::vector<int>> subsets(int size) {
  std::vector<std::vector<int>> sets;
  for (unsigned subset = 1; subset < 1U << size; ++subset) {
    std::vector<int>& ranks = sets.emplace_back();
    for (int rank = 0; rank < size; ++rank) {
      if ((subset >> rank & 1U) != 0) ranks.push_back(rank);
    }
  }
  std::vector<int>& backward = sets.emplace_back(static_cast<std::size_t>(size));
  std::iota(backward.rbegin(), backward.rend(), 0);
  return sets;
}

void check_every_subset(int size) {
  for (const std::vector<int>& ranks : subsets(size)) {
    const ProcessSet set = ronde::add_process_set(ranks);
    if (const auto rank = ronde::rank_in(set)) check_all({set, ranks, *rank});
    ronde::remove_process_set(set);
  }
}

}  // namespace

TEST_CASE("every collective in every subset of the ranks") {
  with_each_backend([](PlainMpi& mpi, const std::string&) { check_every_subset(mpi.size()); });
}

TEST_CASE("every collective in every subset of ranks on two hosts", "[n3][n4]") {
  const int size = PlainMpi::instance().size();
  with_hosts(size == 3 ? "aab" : "abab", [](PlainMpi& mpi) { check_every_subset(mpi.size()); });
}

}  // namespace ronde::test
