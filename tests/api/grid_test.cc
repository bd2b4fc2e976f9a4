// SPDX-License-Identifier: Apache-2.0
// Grids of ranks as threads: the row of each axis against the ranks that arithmetic puts there.
#include "ronde/grid.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <latch>
#include <set>

#include "tests/support/ranks/goes_on.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

/// The place of `rank` in row-major order.
std::vector<int> place_of(int rank, const std::vector<int>& sizes) {
  std::vector<int> place(sizes.size());
  for (std::size_t axis = sizes.size(); axis-- > 0;) {
    place[axis] = rank % sizes[axis];
    rank /= sizes[axis];
  }
  return place;
}

/// The ranks that differ from `rank` along `axis` only, ascending along it.
std::vector<int> expected_row(const Runtime& runtime, const std::vector<int>& sizes,
                              std::size_t axis) {
  const std::vector<int> own = place_of(runtime.topology().rank, sizes);
  std::vector<int> row;
  for (int other = 0; other < runtime.topology().size; ++other) {
    std::vector<int> place = place_of(other, sizes);
    place[axis] = own[axis];
    if (place == own) row.push_back(other);
  }
  return row;
}

/// A sum over one axis of what tells every rank apart, in flight.
struct RowSum {
  RowSum(Runtime& runtime, ProcessSet set) : values(5, value_of(runtime.topology().rank)) {
    Request request = sum_request(values, "row");
    request.set = set;
    work = runtime.submit(request);
  }
  static float value_of(int rank) { return static_cast<float>(1 << rank); }

  std::vector<float> values;
  Work work;
};

void check_sums(Runtime& runtime, const Grid& grid, const std::vector<int>& sizes) {
  const int rank = runtime.topology().rank;
  for (int step = 0; step < 5; ++step) {
    // All axes at once, and another one first on the next rank.
    std::vector<std::unique_ptr<RowSum>> sums(static_cast<std::size_t>(grid.dimensions()));
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const std::size_t axis = (i + static_cast<std::size_t>(rank + step)) % sums.size();
      sums[axis] = std::make_unique<RowSum>(runtime, grid.set(static_cast<int>(axis)));
    }
    for (std::size_t axis = sums.size(); axis-- > 0;) {
      float expected = 0;
      for (const int other : expected_row(runtime, sizes, axis))
        expected += RowSum::value_of(other);
      sums[axis]->work.wait();
      check(sums[axis]->values == std::vector<float>(5, expected),
            "the sum along axis " + std::to_string(axis));
    }
  }
}

void check_grid(Runtime& runtime, const std::vector<int>& sizes) {
  const std::vector<int> place = place_of(runtime.topology().rank, sizes);
  Grid grid(runtime, sizes);
  check(grid.dimensions() == static_cast<int>(sizes.size()), "the dimensions");
  for (int other = 0; other < runtime.topology().size; ++other) {
    check(grid.rank_at(place_of(other, sizes)) == other, "row-major");
  }
  for (int axis = 0; axis < grid.dimensions(); ++axis) {
    const auto index = static_cast<std::size_t>(axis);
    check(grid.size(axis) == sizes[index], "the size along the axis");
    check(grid.coordinate(axis) == place[index], "the coordinate");
    check(runtime.ranks_of(grid.set(axis)) == expected_row(runtime, sizes, index), "the row");
    check(runtime.rank_in(grid.set(axis)) == grid.coordinate(axis), "the rank in the row");
  }
  check_sums(runtime, grid, sizes);
  grid.remove();
  grid.remove();  // which has nothing left to do
  check_contains(text_of<UsageError>([&] { grid.set(1); }), "axis 1 has been removed");
  check(runtime.process_sets().size() == 1, "no set is left");
}

}  // namespace

TEST_CASE("the axes of a grid reduce each by itself and all at once") {
  const std::vector<std::pair<int, std::vector<std::vector<int>>>> rows = {
      {4, {{2, 2}, {1, 4}, {4, 1}, {2, 1, 2}, {1, 2, 1, 2}}},
      {6, {{2, 3}, {3, 2}, {3, 1, 2}}},
      {8, {{2, 2, 2}, {2, 4}, {4, 2}, {2, 1, 2, 2}}},
  };
  for (const auto& [ranks, grids] : rows) {
    run_group(ranks, [&all = grids](int, Runtime& runtime) {
      for (const std::vector<int>& sizes : all) check_grid(runtime, sizes);
    });
  }
}

TEST_CASE("several grids live beside each other") {
  run_group(4, [](int, Runtime& runtime) {
    Grid first(runtime, {2, 2});
    Grid again(runtime, {2, 2});
    Grid flat(runtime, {1, 4}, "flat");
    std::set<std::uint32_t> ids;
    for (const int axis : {0, 1}) {
      for (const Grid* grid : {&first, &again, &flat}) ids.insert(grid->set(axis).id);
    }
    check(ids.size() == 6, "each has sets of its own");
    first.remove();
    check_sums(runtime, again, {2, 2});
    check_sums(runtime, flat, {1, 4});
    const Grid moved = std::move(again);
    check_sums(runtime, moved, {2, 2});
  });
}

TEST_CASE("threads make grids at the same time, told apart by tags") {
  run_group(4, [](int rank, Runtime& runtime) {
    run_ranks(3, [&](int thread) {
      const Grid grid(runtime, {2, 2}, "of thread " + std::to_string(thread));
      check(runtime.ranks_of(grid.set(0)) == std::vector{rank % 2, rank % 2 + 2}, "the row");
    });
  });
}

TEST_CASE("dimensions that cannot be are refused on every rank, and the job goes on") {
  const int huge = 1 << 30;
  const std::vector<std::pair<std::vector<int>, std::string>> rows = {
      {{2, 3},
       "ronde::Grid of 2 x 3: the product of the dimensions must be the number of ranks, "
       "which is 4"},
      {{1, 3}, "which is 4"},
      {{huge, huge, huge, 4}, "which is 4"},
      {{4}, "a grid has 2 to 4 dimensions, not 1"},
      {{}, "a grid has 2 to 4 dimensions, not 0"},
      {{2, 2, 1, 1, 1}, "a grid has 2 to 4 dimensions, not 5"},
      {{4, 0}, "a dimension of 0 has no ranks"},
      {{-2, -2}, "a dimension of -2 has no ranks"},
  };
  run_group(4, [&](int rank, Runtime& runtime) {
    for (const auto& [dimensions, text] : rows) {
      const auto make = [&, &sizes = dimensions] { Grid(runtime, sizes); };
      check_contains(text_of<UsageError>(make), text);
    }
    const std::vector<int> mine = rank == 2 ? std::vector{4, 1} : std::vector{2, 2};
    check(text_of<UsageError>([&] { Grid(runtime, mine, "mine"); }) ==
              "ronde::Grid 'mine': rank 0 gave the dimensions 2 x 2, but rank 2 4 x 1; every rank "
              "must give the same",
          "who differs is named");
    check(runtime.process_sets().size() == 1, "nothing was made");
    check_goes_on(runtime);
  });
}

TEST_CASE("axes and places that a grid does not have are refused") {
  run_group(4, [](int, Runtime& runtime) {
    const Grid grid(runtime, {2, 2});
    for (const int axis : {-1, 2}) {
      const std::string text = "has no axis " + std::to_string(axis) + ": there are axes 0 to 1";
      check_contains(text_of<UsageError>([&] { grid.set(axis); }), text);
      check_contains(text_of<UsageError>([&] { grid.size(axis); }), text);
      check_contains(text_of<UsageError>([&] { grid.coordinate(axis); }), text);
    }
    const std::vector<std::vector<int>> nowhere = {{}, {0}, {0, 2}, {-1, 0}, {0, 0, 0}};
    for (const std::vector<int>& place : nowhere) {
      check_contains(text_of<UsageError>([&] { grid.rank_at(place); }), "there is no rank at (");
    }
  });
}

TEST_CASE("a row in use stays while the rest of the grid is removed") {
  std::latch refused(2);
  run_group(4, [&](int rank, Runtime& runtime) {
    Grid grid(runtime, {2, 2});
    // Ranks 1 and 3 are a row along axis 0.
    if (rank % 2 == 1) {
      std::unique_ptr<RowSum> sum;
      if (rank == 1) sum = std::make_unique<RowSum>(runtime, grid.set(0));
      check_contains(text_of<UsageError>([&] { grid.remove(); }), "in flight");
      check(grid.set(0) != kGlobalSet, "the row stays");
      refused.arrive_and_wait();
      if (rank == 3) sum = std::make_unique<RowSum>(runtime, grid.set(0));
      sum->work.wait();
      check(sum->values[0] == RowSum::value_of(1) + RowSum::value_of(3), "and finishes");
    }
    grid.remove();
    check(runtime.process_sets().size() == 1, "no set is left");
    check_goes_on(runtime);
  });
}

TEST_CASE("a row that cannot be made fails the grid on every rank, and leaves no set") {
  const inproc::Group group(4);
  run_ranks(4, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    BackendFactory& factory = options.backends["inproc"];
    factory.create = [rank, create = factory.create, made = 0](BackendContext& context) mutable {
      // That of all ranks comes first, then those of axis 0 and axis 1.
      const bool is_second_row = made++ == 2;
      if (is_second_row && rank == 3) throw Error("no memory for a row");
      return create(context);
    };
    Runtime runtime(std::move(options));
    const std::string text = text_of<UsageError>([&] { Grid(runtime, {2, 2}); });
    check_contains(text, "ronde::Grid of 2 x 2: rank 2 could not make its process sets");
    check((text.find("no memory for a row") != std::string::npos) == (rank >= 2), text);
    check(runtime.process_sets().size() == 1, "no set is left");
    check_goes_on(runtime);
    runtime.shutdown();
  });
}
