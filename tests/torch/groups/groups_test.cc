// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "tests/torch/layouts.h"

namespace ronde_test::groups_test {
namespace {

const std::vector<std::vector<std::int64_t>> kShapes = {{2, 3, 4, 5}, {6, 1, 2, 3}, {},
                                                        {7},          {0, 3},       {5, 2, 2, 2}};

/// Returns tensors of one rank with many shapes, dtypes and layouts.
Tensors tensors_of(int rank) {
  const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kDouble, at::kBFloat16, at::kLong};
  Tensors tensors;
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    const at::Tensor values = whole_numbers(kShapes[i], rank, i, dtypes[i % dtypes.size()]);
    tensors.push_back(values.dim() == 4 ? laid_out(values, rank, i) : values);
  }
  return tensors;
}

/// `combine` of each tensor of all ranks, which `of` gives.
Tensors expected(const std::function<Tensors(int rank)>& of,
                 const std::function<at::Tensor(const Tensors&)>& combine) {
  const std::vector<Tensors> all = by_rank(of);
  Tensors results;
  for (std::size_t i = 0; i < all.front().size(); ++i) {
    Tensors of_ranks;
    for (const Tensors& tensors : all) of_ranks.push_back(tensors[i]);
    results.push_back(combine(of_ranks));
  }
  return results;
}

TEST_CASE("a grouped allreduce gives what each allreduce would, in all four forms") {
  const auto make = [] { return tensors_of(ronde::rank()); };
  const Tensors mine = make(), sums = expected(tensors_of, sum_of);
  for (const char* const name : {"grads", "grads", ""}) {
    const AllreduceOptions options = {.name = name, .op = ReduceOp::Sum};
    const Tensors results = ronde::grouped_allreduce(mine, options);
    CHECK(equal(results, sums));
    for (const at::Tensor& result : results) CHECK(result.is_contiguous());
    CHECK(equal(mine, make()));
    const ronde::GroupWork work = ronde::grouped_allreduce_async(mine, options);
    CHECK(work.works().size() == mine.size());
    CHECK(equal(work.wait(), sums));
    CHECK(work.done());
    CHECK(work.wait_for(std::chrono::seconds(0)));
    CHECK(equal(work.results(), sums));
    CHECK(work.error() == nullptr);
    for (const bool waits : {true, false}) {
      const Tensors in_place = make();
      const Tensors returned = waits ? ronde::grouped_allreduce_(in_place, options)
                                     : ronde::grouped_allreduce_async_(in_place, options).wait();
      CHECK(equal(in_place, sums));
      for (std::size_t i = 0; i < in_place.size(); ++i) {
        CHECK(returned[i].is_same(in_place[i]));
        CHECK(returned[i].strides() == mine[i].strides());
      }
    }
  }
}

TEST_CASE("grouped allgathers and reducescatters give what single ones would") {
  Tensors mine = tensors_of(ronde::rank());
  const auto rows = [](const Tensors& all) {
    return all[0].dim() == 0 ? at::stack(all) : at::cat(all);
  };
  const Tensors gathered = expected(tensors_of, rows);
  CHECK(equal(ronde::grouped_allgather(mine), gathered));
  CHECK(equal(ronde::grouped_allgather_async(mine, {.name = "all"}).wait(), gathered));
  // A tensor without dimensions cannot be scattered.
  check_refused([&] { ronde::grouped_reducescatter(mine); }, {"a scalar has no first dimension"});
  const auto with_rows = [](int rank) {
    Tensors tensors = tensors_of(rank);
    for (at::Tensor& tensor : tensors) {
      if (tensor.dim() == 0) tensor = at::ones({3});
    }
    return tensors;
  };
  mine = with_rows(ronde::rank());
  const Tensors parts = expected(with_rows, [](const Tensors& all) {
    return mine_of(sum_of(all).tensor_split(ronde::size()));
  });
  CHECK(equal(ronde::grouped_reducescatter(mine, {.op = ReduceOp::Sum}), parts));
  CHECK(equal(ronde::grouped_reducescatter_async(mine, {.name = "s", .op = ReduceOp::Sum}).wait(),
              parts));
}

TEST_CASE("a group is refused as a whole where one tensor is", "[n2][n3]") {
  const bool differs = ronde::rank() == 1;
  const Tensors mine = {at::ones({2}), at::ones({differs ? 4 : 3}), at::ones({5})};
  const ronde::GroupWork work =
      ronde::grouped_allreduce_async_(mine, {.name = "odd", .op = ReduceOp::Sum});
  const std::string text =
      check_refused([&] { work.wait(); }, {"odd.1", "rank 1: allreduce f32 [4]"});
  CHECK(work.done());
  CHECK(usage_error([&] { std::rethrow_exception(work.error()); }) == text);
  CHECK(usage_error([&] { work.results(); }) == text);
  CHECK(usage_error([&] { work.wait_for(std::chrono::seconds(1)); }) == text);
  for (const at::Tensor& tensor : mine) CHECK(torch::equal(tensor, at::ones_like(tensor)));
  const Tensors again = ronde::grouped_allreduce({at::ones({2}), at::ones({3})}, {.name = "odd"});
  CHECK(torch::equal(again[1], at::ones({3})));
}

TEST_CASE("a group waits for all of its tensors on every rank", "[n2]") {
  ronde::GroupWork work;
  CHECK(work.done());
  CHECK(work.wait().empty());
  const Tensors mine = {at::ones({2}), at::ones({3})};
  const auto start = [&] {
    return ronde::grouped_allreduce_async(mine, {.name = "late", .op = ReduceOp::Sum});
  };
  if (ronde::rank() == 0) {
    work = start();
    CHECK_FALSE(work.wait_for(std::chrono::milliseconds(1)));
    CHECK_FALSE(work.done());
    CHECK(work.error() == nullptr);
    check_refused([&] { work.results(); }, {"while the group is pending"});
  }
  ronde::barrier();
  if (ronde::rank() == 1) work = start();
  CHECK(equal(work.wait(), {at::full({2}, 2.0), at::full({3}, 2.0)}));
}

}  // namespace
}  // namespace ronde_test::groups_test
