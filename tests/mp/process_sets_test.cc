// SPDX-License-Identifier: Apache-2.0
// Process sets over mpiexec: every collective in every subset, against what the members' inputs
// make in double precision or byte by byte.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "case_table.h"
#include "oracle.h"
#include "plain_mpi.h"
#include "ranks.h"
#include "ronde/ronde.h"

namespace ronde::test {
namespace {

/// A set with its place in the group.
struct Within {
  ProcessSet set;
  std::vector<int> ranks;
  int rank = 0;

  int size() const { return static_cast<int>(ranks.size()); }
};

Request request_in(const Within& within, Collective kind, const std::string& name) {
  Request request;
  request.kind = kind;
  request.name = name;
  request.set = within.set;
  return request;
}

std::vector<Elements> inputs_of(const Within& within, DataType dtype, ReduceOp op,
                                std::size_t count) {
  std::vector<Elements> inputs;
  for (const int rank : within.ranks) inputs.push_back(make_input(dtype, op, count, rank, 7));
  return inputs;
}

std::string reduction_difference(const Reduction& reduction, const std::vector<Elements>& inputs,
                                 const Elements& result) {
  if (is_floating(reduction.dtype)) {
    std::vector<double> all;
    for (const Elements& input : inputs) {
      const std::vector<double> numbers = input.numbers();
      all.insert(all.end(), numbers.begin(), numbers.end());
    }
    return first_difference(reduction, all, result);
  }
  std::vector<std::int64_t> all;
  for (const Elements& input : inputs) {
    const std::vector<std::int64_t> numbers = input.integers();
    all.insert(all.end(), numbers.begin(), numbers.end());
  }
  return first_difference(reduction, all, result);
}

void check_allreduces(const Within& within) {
  for (const DataType dtype : kAllDataTypes) {
    for (const ReduceOp op : kElementwiseOps) {
      if (dtype == DataType::Bool && op == ReduceOp::Average) continue;
      const std::size_t count = 1003;
      const std::vector<Elements> inputs = inputs_of(within, dtype, op, count);
      Elements values = inputs[static_cast<std::size_t>(within.rank)];
      Request request =
          request_in(within, Collective::Allreduce,
                     "r " + std::string(to_string(dtype)) + std::string(to_string(op)));
      request.dtype = dtype;
      request.op = op;
      request.shape = {static_cast<std::int64_t>(count)};
      request.input = request.output = values.data();
      ronde::run(request);
      const Reduction reduction = {.dtype = dtype, .op = op, .ranks = within.size()};
      check(reduction_difference(reduction, inputs, values).empty(), request.name);
    }
  }
}

void check_reducescatter(const Within& within) {
  const std::int64_t rows = 2 * within.size() + 1;
  const std::size_t width = 301;
  const std::vector<Elements> inputs =
      inputs_of(within, DataType::F32, ReduceOp::Average, static_cast<std::size_t>(rows) * width);
  const bool has_more = within.rank < 1;
  const std::size_t own_rows = has_more ? 3 : 2;
  const std::size_t begin =
      (has_more ? 0 : 3 + 2 * static_cast<std::size_t>(within.rank - 1)) * width;
  Elements result(DataType::F32, own_rows * width);
  Request request = request_in(within, Collective::Reducescatter, "scatter");
  request.op = ReduceOp::Average;
  request.shape = {rows, static_cast<std::int64_t>(width)};
  request.input = inputs[static_cast<std::size_t>(within.rank)].data();
  request.output = result.data();
  ronde::run(request);
  std::vector<double> all;
  for (const Elements& input : inputs) {
    for (std::size_t i = 0; i < own_rows * width; ++i) all.push_back(input.number(begin + i));
  }
  const Reduction reduction = {.op = ReduceOp::Average, .ranks = within.size()};
  check(first_difference(reduction, all, result).empty(), "the scattered average");
}

/// `count` bytes that rank `rank` of the group has for `other`.
std::vector<std::byte> bytes_for(int rank, int other, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>(17 * static_cast<std::size_t>(rank + 1) +
                                      5 * static_cast<std::size_t>(other + 1) + i);
  }
  return bytes;
}

void check_moves(const Within& within) {
  const int own = within.ranks[static_cast<std::size_t>(within.rank)];
  for (int root = 0; root < within.size(); ++root) {
    const int root_of_group = within.ranks[static_cast<std::size_t>(root)];
    std::vector<std::byte> values = bytes_for(own, 0, 20'000);
    Request request = request_in(within, Collective::Broadcast, "b" + std::to_string(root));
    request.dtype = DataType::U8;
    request.shape = {20'000};
    request.root = root;
    request.input = request.output = values.data();
    ronde::run(request);
    check(values == bytes_for(root_of_group, 0, 20'000), "what the root has");
  }
  const auto rows_of = [](int rank) { return static_cast<std::size_t>(1000 * rank + 1); };
  std::vector<std::byte> gathered, sent, received;
  std::vector<std::int64_t> splits;
  for (const int other : within.ranks) {
    const std::vector<std::byte> theirs = bytes_for(other, 0, rows_of(other));
    gathered.insert(gathered.end(), theirs.begin(), theirs.end());
    const std::vector<std::byte> to = bytes_for(own, other, rows_of(other));
    sent.insert(sent.end(), to.begin(), to.end());
    splits.push_back(static_cast<std::int64_t>(to.size()));
    const std::vector<std::byte> from = bytes_for(other, own, rows_of(own));
    received.insert(received.end(), from.begin(), from.end());
  }
  const std::vector<std::byte> mine = bytes_for(own, 0, rows_of(own));
  std::vector<std::byte> result(gathered.size());
  Request gather = request_in(within, Collective::Allgather, "gather");
  gather.dtype = DataType::U8;
  gather.shape = {static_cast<std::int64_t>(mine.size())};
  gather.input = mine.data();
  gather.output = result.data();
  ronde::run(gather);
  check(result == gathered, "what all have");
  std::vector<std::byte> exchanged(received.size());
  Request exchange = request_in(within, Collective::Alltoall, "exchange");
  exchange.dtype = DataType::U8;
  exchange.shape = {static_cast<std::int64_t>(sent.size())};
  exchange.splits = splits;
  exchange.input = sent.data();
  exchange.output = exchanged.data();
  ronde::run(exchange);
  check(exchanged == received, "what each has for this rank");
}

void check_ring(const Within& within) {
  if (within.size() == 1) return;
  const int own = within.ranks[static_cast<std::size_t>(within.rank)];
  const int from = (within.rank + within.size() - 1) % within.size();
  const std::vector<std::byte> out = bytes_for(own, 3, 300'000);
  std::vector<std::byte> in(out.size());
  Request message = request_in(within, Collective::Send, "");
  message.dtype = DataType::U8;
  message.shape = {static_cast<std::int64_t>(out.size())};
  message.peer = (within.rank + 1) % within.size();
  message.input = out.data();
  const Work sent = ronde::submit(message);
  message.kind = Collective::Recv;
  message.peer = kAnyRank;
  message.output = in.data();
  const Work received = ronde::submit(message);
  sent.wait();
  received.wait();
  check(received.source() == from, "the one before");
  check(in == bytes_for(within.ranks[static_cast<std::size_t>(from)], 3, in.size()), "its bytes");
}

void check_all(const Within& within) {
  check_allreduces(within);
  check_reducescatter(within);
  check_moves(within);
  check_ring(within);
  Request barrier = request_in(within, Collective::Barrier, "");
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
    std::vector<Within> mine;
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
      for (const Within& within : mine) {
        auto& buffer = values.emplace_back(kCount, static_cast<float>(mpi.rank() + step));
        Request request = request_in(within, Collective::Allreduce, "x");
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
