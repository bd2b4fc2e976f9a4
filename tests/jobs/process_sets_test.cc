// SPDX-License-Identifier: Apache-2.0
// Process sets over mpiexec: every collective in every subset, as rows of the oracle.
#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "ronde/ronde.h"
#include "tests/support/oracle/forms.h"
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
  for (const DataType dtype : kAllDataTypes) {
    for (const ReduceOp op : kElementwiseOps) {
      if (dtype == DataType::Bool && op == ReduceOp::Average) continue;
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

TEST_CASE("sets that overlap are busy at the same time", "[n3][n4]") {
  with_each_backend([](PlainMpi& mpi, const std::string&) {
    const int size = mpi.size();
    std::vector<Place> mine;
    for (int first = 0; first < size; ++first) {
      const std::vector<int> ranks = {first, (first + 1) % size};
      const ProcessSet set = ronde::add_process_set(ranks);
      if (const auto rank = ronde::rank_in(set)) mine.push_back({set, ranks, *rank});
    }
    constexpr std::size_t kCount = 100'000;
    for (int step = 0; step < 20; ++step) {
      // Each rank begins with another one of its two sets than its neighbours.
      if (mpi.rank() % 2 == 1) std::swap(mine.front(), mine.back());
      std::vector<std::vector<float>> values;
      std::vector<Work> works;
      for (const Place& pair : mine) {
        auto& buffer = values.emplace_back(kCount, static_cast<float>(mpi.rank() + step));
        Request request;
        request.name = "x";
        request.set = pair.set;
        request.shape = {kCount};
        request.input = request.output = buffer.data();
        works.push_back(ronde::submit(request));
      }
      for (std::size_t i = mine.size(); i-- > 0;) {
        works[i].wait();
        const auto expected = static_cast<float>(mine[i].ranks[0] + mine[i].ranks[1] + 2 * step);
        check(std::count(values[i].begin(), values[i].end(), expected) ==
                  static_cast<std::ptrdiff_t>(kCount),
              "the sum of the pair");
      }
    }
  });
}

TEST_CASE("every collective along every axis of a grid", "[n4]") {
  const auto check_grids = [](PlainMpi& mpi) {
    for (const std::vector<int>& sizes : {std::vector{2, 2}, {1, 4}, {2, 1, 2}}) {
      ronde::Grid grid(sizes);
      int stride = mpi.size();
      for (int axis = 0; axis < grid.dimensions(); ++axis) {
        // Neighbours along the axis are as many ranks apart as the axes after it have places.
        stride /= grid.size(axis);
        const int coordinate = mpi.rank() / stride % grid.size(axis);
        std::vector<int> row;
        for (int other = 0; other < grid.size(axis); ++other) {
          row.push_back(mpi.rank() + (other - coordinate) * stride);
        }
        check(ronde::ranks_of(grid.set(axis)) == row, "the row");
        check_all({grid.set(axis), row, coordinate});
      }
      grid.remove();
    }
  };
  with_each_backend([&](PlainMpi& mpi, const std::string&) { check_grids(mpi); });
  with_hosts("aabb", check_grids);
}

TEST_CASE("static sets come from the environment") {
  const int size = PlainMpi::instance().size();
  std::string all = "0";
  for (int rank = 1; rank < size; ++rank) all += "," + std::to_string(rank);
  with_group(
      [&](PlainMpi& mpi) {
        check(ronde::process_sets() == std::vector<ProcessSet>{{0}, {1}, {2}}, "all of them");
        check(static_cast<int>(ronde::ranks_of({1}).size()) == mpi.size(), "the first one");
        check(ronde::rank_in({2}).has_value() == (mpi.rank() == 0), "the second one");
      },
      {{"RONDE_PROCESS_SETS", all + ";0"}});
}

}  // namespace ronde::test
