// SPDX-License-Identifier: Apache-2.0
// Groups of tensors against LibTorch in one process.
#include <thread>

#include "layouts.h"

using namespace ronde_test;
using ronde::ReduceOp;
using Tensors = std::vector<at::Tensor>;

namespace {

const std::vector<std::vector<std::int64_t>> kShapes = {{2, 3, 4, 5}, {6, 1, 2, 3}, {},
                                                        {7},          {0, 3},       {5, 2, 2, 2}};

at::ScalarType dtype_of(std::size_t i) {
  const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kDouble, at::kBFloat16, at::kLong};
  return dtypes[i % dtypes.size()];
}

/// Of one rank: of many shapes, dtypes and layouts.
Tensors tensors_of(int rank) {
  Tensors tensors;
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    const at::Tensor values = whole_numbers(kShapes[i], rank, i, dtype_of(i));
    tensors.push_back(values.dim() == 4 ? laid_out(values, rank, i) : values);
  }
  return tensors;
}

/// `combine` of each tensor of all ranks.
Tensors expected(const Tensors& mine, const std::function<at::Tensor(const Tensors&)>& combine) {
  Tensors results;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    Tensors all;
    for (int rank = 0; rank < ronde::size(); ++rank) all.push_back(tensors_of(rank)[i]);
    results.push_back(combine(all));
  }
  return results;
}

at::Tensor sum_of(const Tensors& all) {
  return at::stack(all).sum(0).to(all[0].scalar_type());
}

bool equal(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].scalar_type() != b[i].scalar_type() || !torch::equal(a[i], b[i])) return false;
  }
  return true;
}

std::string text_of(const std::exception_ptr& error) {
  return usage_error([&] { std::rethrow_exception(error); });
}

}  // namespace

TEST_CASE("a grouped allreduce gives what each allreduce would, in all four forms") {
  use_ronde();
  const Tensors mine = tensors_of(ronde::rank());
  const Tensors sums = expected(mine, sum_of);
  const ronde::AllreduceOptions named = {.name = "grads", .op = ReduceOp::Sum};
  for (const auto& options : {named, ronde::AllreduceOptions{.op = ReduceOp::Sum}}) {
    for (int step = 0; step < 3; ++step) {
      const Tensors results = ronde::grouped_allreduce(mine, options);
      CHECK(equal(results, sums));
      for (const at::Tensor& result : results) CHECK(result.is_contiguous());
      CHECK(equal(mine, tensors_of(ronde::rank())));
      const ronde::GroupWork work = ronde::grouped_allreduce_async(mine, options);
      CHECK(work.works().size() == mine.size());
      CHECK(equal(work.wait(), sums));
      CHECK(work.done());
      CHECK(work.wait_for(std::chrono::seconds(0)));
      CHECK(equal(work.results(), sums));
      CHECK(work.error() == nullptr);
      for (const bool waits : {true, false}) {
        const Tensors in_place = tensors_of(ronde::rank());
        const Tensors returned = waits ? ronde::grouped_allreduce_(in_place, options)
                                       : ronde::grouped_allreduce_async_(in_place, options).wait();
        CHECK(equal(in_place, sums));
        for (std::size_t i = 0; i < in_place.size(); ++i) {
          CHECK(returned[i].is_same(in_place[i]));
          CHECK(returned[i].strides() == tensors_of(ronde::rank())[i].strides());
        }
      }
    }
  }
}

TEST_CASE("a grouped allreduce averages by default, and scales", "[n2][n3]") {
  use_ronde();
  const Tensors mine = {at::full({3}, ronde::rank() + 1.0), at::full({}, 2.0 * ronde::rank())};
  const double mean = (ronde::size() - 1) / 2.0;
  const Tensors means = ronde::grouped_allreduce(mine);
  CHECK(near(means[0], at::full({3}, mean + 1), 1e-6));
  CHECK(near(means[1], at::full({}, 2 * mean), 1e-6));
  const Tensors scaled = ronde::grouped_allreduce(mine, {.prescale = 3, .postscale = 0.5});
  CHECK(near(scaled[0], at::full({3}, 1.5 * (mean + 1)), 1e-6));
}

TEST_CASE("grouped allgathers and reducescatters give what single ones would") {
  use_ronde();
  Tensors mine = tensors_of(ronde::rank());
  const auto rows = [](const Tensors& all) {
    return all[0].dim() == 0 ? at::stack(all) : at::cat(all);
  };
  const Tensors gathered = expected(mine, rows);
  CHECK(equal(ronde::grouped_allgather(mine), gathered));
  CHECK(equal(ronde::grouped_allgather_async(mine, {.name = "all"}).wait(), gathered));
  const auto own_rows = [](const Tensors& all) {
    const at::Tensor sum = sum_of(all);
    const std::int64_t each = sum.size(0) / ronde::size();
    const std::int64_t more = sum.size(0) % ronde::size();
    const std::int64_t begin = ronde::rank() * each + std::min<std::int64_t>(ronde::rank(), more);
    return sum.narrow(0, begin, each + (ronde::rank() < more ? 1 : 0));
  };
  // A tensor without dimensions cannot be scattered.
  constexpr std::size_t kScalar = 2;
  const std::string text = usage_error([&] { ronde::grouped_reducescatter(mine); });
  CAPTURE(text);
  CHECK(contains(text, "a scalar has no first dimension"));
  mine[kScalar] = at::ones({3});
  Tensors parts;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    Tensors all;
    for (int rank = 0; rank < ronde::size(); ++rank) {
      all.push_back(i == kScalar ? at::ones({3}) : tensors_of(rank)[i]);
    }
    parts.push_back(own_rows(all));
  }
  CHECK(equal(ronde::grouped_reducescatter(mine, {.op = ReduceOp::Sum}), parts));
  CHECK(equal(ronde::grouped_reducescatter_async(mine, {.name = "s", .op = ReduceOp::Sum}).wait(),
              parts));
}

TEST_CASE("a grouped reducescatter averages by default, and scales", "[n2][n3]") {
  use_ronde();
  const int size = ronde::size();
  const Tensors mine = {at::full({2 * size, 2}, ronde::rank() + 1.0),
                        at::full({size}, 10.0 * ronde::rank(), at::kDouble)};
  const double mean = (size - 1) / 2.0;
  const auto check = [&](const ronde::ReducescatterOptions& options, double factor) {
    for (const Tensors& parts : {ronde::grouped_reducescatter(mine, options),
                                 ronde::grouped_reducescatter_async(mine, options).wait()}) {
      CHECK(near(parts[0], at::full({2, 2}, factor * (mean + 1)), 1e-6));
      CHECK(near(parts[1], at::full({1}, factor * 10 * mean, at::kDouble), 1e-12));
    }
  };
  check({}, 1);
  check({.name = "before", .prescale = 3}, 3);
  check({.name = "after", .postscale = 0.25}, 0.25);
  check({.op = ReduceOp::Sum, .prescale = -2, .postscale = 0.5}, -size);
}

TEST_CASE("expanded tensors are read by groups, but not written", "[n2]") {
  use_ronde();
  const Tensors expanded = {at::ones({2}), at::full({1}, ronde::rank() + 1.0).expand({4, 3})};
  const Tensors sums = ronde::grouped_allreduce(expanded, {.op = ReduceOp::Sum});
  CHECK(torch::equal(sums[1], at::full({4, 3}, 3.0)));
  const std::string text =
      usage_error([&] { ronde::grouped_allreduce_(expanded, {.name = "masks"}); });
  CAPTURE(text);
  CHECK(contains(text, "ronde::grouped_allreduce_(\"masks\"), tensor 1"));
  CHECK(contains(text, "contiguous()"));
  CHECK(torch::equal(expanded[0], at::ones({2})));
}

TEST_CASE("a group is refused as a whole where one tensor is", "[n2][n3]") {
  use_ronde();
  const bool differs = ronde::rank() == 1;
  const Tensors mine = {at::ones({2}), at::ones({differs ? 4 : 3}), at::ones({5})};
  const ronde::GroupWork work =
      ronde::grouped_allreduce_async_(mine, {.name = "odd", .op = ReduceOp::Sum});
  const std::string text = usage_error([&] { work.wait(); });
  CAPTURE(text);
  CHECK(contains(text, "odd.1"));
  CHECK(contains(text, "rank 1: allreduce f32 [4]"));
  CHECK(work.done());
  CHECK(text_of(work.error()) == text);
  CHECK(usage_error([&] { work.results(); }) == text);
  CHECK(usage_error([&] { work.wait_for(std::chrono::seconds(1)); }) == text);
  for (const at::Tensor& tensor : mine) CHECK(torch::equal(tensor, at::ones_like(tensor)));
  const Tensors again = ronde::grouped_allreduce({at::ones({2}), at::ones({3})}, {.name = "odd"});
  CHECK(torch::equal(again[1], at::ones({3})));
}

TEST_CASE("a group waits for all of its tensors on every rank", "[n2]") {
  use_ronde();
  ronde::GroupWork work;
  CHECK(work.done());
  CHECK(work.wait().empty());
  const Tensors mine = {at::ones({2}), at::ones({3})};
  if (ronde::rank() == 0) {
    work = ronde::grouped_allreduce_async(mine, {.name = "late", .op = ReduceOp::Sum});
    CHECK_FALSE(work.wait_for(std::chrono::milliseconds(1)));
    CHECK_FALSE(work.done());
    CHECK(work.error() == nullptr);
    CHECK(contains(usage_error([&] { work.results(); }), "while the group is pending"));
  }
  ronde::barrier();
  if (ronde::rank() == 1) {
    work = ronde::grouped_allreduce_async(mine, {.name = "late", .op = ReduceOp::Sum});
  }
  CHECK(torch::equal(work.wait()[1], at::full({3}, 2.0)));
}

TEST_CASE("tensors that no group can take are refused before anything is sent", "[n2]") {
  use_ronde();
  const at::Tensor dense = at::ones({2, 2});
  const std::vector<std::pair<at::Tensor, std::string>> refusals = {
      {at::Tensor(), "undefined"},
      {dense.to_sparse(), "to_dense()"},
      {at::ones({2}, at::kComplexFloat), "view_as_real"},
      {at::empty({2}, at::TensorOptions().device(at::kMeta)), "meta"},
  };
  for (const auto& [tensor, advice] : refusals) {
    const Tensors tensors = {dense, tensor};
    const std::vector<std::function<void()>> calls = {
        [&] { ronde::grouped_allreduce(tensors, {.name = "g"}); },
        [&] { ronde::grouped_allreduce_(tensors, {.name = "g"}); },
        [&] { ronde::grouped_allgather(tensors, {.name = "g"}); },
        [&] { ronde::grouped_reducescatter(tensors, {.name = "g"}); },
    };
    for (const auto& call : calls) {
      const std::string text = usage_error(call);
      CAPTURE(text);
      CHECK(contains(text, advice));
      CHECK(contains(text, "(\"g\"), tensor 1"));
    }
  }
  CHECK(contains(usage_error([] { ronde::grouped_allreduce({}); }), "at least one operation"));
  CHECK(near(ronde::grouped_allreduce({dense}, {.name = "g"})[0], dense, 0));
}
