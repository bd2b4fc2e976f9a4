// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numeric>
#include <thread>
#include <utility>

#include "adasum.h"
#include "layouts.h"

namespace ronde_test::collectives_test {

using ronde::ReduceOp;

namespace {

// Small whole numbers, other ones on each rank: exact in every dtype, also summed.
at::Tensor values(at::ScalarType dtype, at::IntArrayRef sizes, int rank) {
  at::Generator generator = at::detail::createCPUGenerator(100 + static_cast<std::uint64_t>(rank));
  const at::Tensor drawn = at::randint(0, 5, sizes, generator, at::kDouble);
  if (dtype == at::kByte || dtype == at::kBool) return drawn.remainder(3).to(dtype);
  return (drawn - 2).to(dtype);
}

Tensors values_of_all(at::ScalarType dtype, at::IntArrayRef sizes) {
  return by_rank([&](int rank) { return values(dtype, sizes, rank); });
}

// In double precision, then as Ronde documents each dtype.
at::Tensor expected_allreduce(const Tensors& all, ReduceOp op) {
  const at::ScalarType dtype = all[0].scalar_type();
  const at::Tensor stacked = at::stack(all).to(at::kDouble);
  const at::Tensor result = op == ReduceOp::Sum       ? stacked.sum(0)
                            : op == ReduceOp::Average ? stacked.mean(0)
                            : op == ReduceOp::Min     ? stacked.amin(0)
                            : op == ReduceOp::Max     ? stacked.amax(0)
                                                      : stacked.prod(0);
  if (dtype == at::kBool) return result.ne(0);
  return (at::isFloatingType(dtype) ? result : result.trunc()).to(dtype);
}

const std::vector<std::int64_t> kSizes = {2, 3, 4, 5};

}  // namespace

TEST_CASE("allreduce agrees with a double-precision oracle for every dtype and op") {
  for (const at::ScalarType dtype : kDtypes) {
    for (const ReduceOp op : ronde::kElementwiseOps) {
      if (dtype == at::kBool && op == ReduceOp::Average) continue;
      const auto all = values_of_all(dtype, {7, 11});
      const at::Tensor& mine = mine_of(all);
      const at::Tensor before = mine.clone();
      const at::Tensor expected = expected_allreduce(all, op);
      CAPTURE(c10::toString(dtype), to_string(op));
      const at::Tensor result = ronde::allreduce(mine, {.op = op});
      CHECK(result.scalar_type() == dtype);
      CHECK(torch::equal(result, expected));
      CHECK(torch::equal(mine, before));
      CHECK(torch::equal(ronde::allreduce_async(mine, {.op = op}).wait(), expected));
      const at::Tensor in_place = mine.clone();
      CHECK(ronde::allreduce_(in_place, {.op = op}).is_same(in_place));
      CHECK(torch::equal(in_place, expected));
      const at::Tensor in_place_async = mine.clone();
      CHECK(ronde::allreduce_async_(in_place_async, {.op = op}).wait().is_same(in_place_async));
      CHECK(torch::equal(in_place_async, expected));
    }
  }
}

TEST_CASE("adasum of tensors is that of pairs of neighbours, whatever their layout") {
  const auto of_rank = [](int rank) {
    // Alike, but for one element a rank.
    at::Tensor own = at::arange(15, at::kDouble).view({5, 3});
    own[rank % 5][1] = -3;
    return own;
  };
  const Tensors all = by_rank([&](int rank) { return of_rank(rank); });
  const at::Tensor expected = adasum(all);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor own = of_rank(ronde::rank()).to(dtype).t().contiguous().t();
    const at::Tensor result = ronde::allreduce(own, {.name = "adasum", .op = ReduceOp::Adasum});
    const double tolerance = dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : 0.05;
    CHECK(result.scalar_type() == dtype);
    CHECK(at::allclose(result.to(at::kDouble), expected, tolerance, tolerance));
  }
  CHECK_THROWS_AS(ronde::allreduce(at::ones({3}, at::kLong), {.op = ReduceOp::Adasum}),
                  ronde::UsageError);
  ronde::allreduce(at::ones({3}));
}

TEST_CASE("allreduce averages fractions within each dtype's precision") {
  const std::vector<std::pair<at::ScalarType, double>> tolerances = {
      {at::kDouble, 1e-14}, {at::kFloat, 1e-6}, {at::kHalf, 2e-3}, {at::kBFloat16, 2e-2}};
  for (const auto& [dtype, tolerance] : tolerances) {
    const Tensors all = by_rank([&](int r) { return normal({1000}, 40 + r, dtype); });
    CAPTURE(c10::toString(dtype));
    const at::Tensor result = ronde::allreduce(mine_of(all));
    const at::Tensor oracle = at::stack(all).to(at::kDouble).mean(0);
    CHECK(near(result, oracle, tolerance));
    CHECK(same_on_all_ranks(result));
  }
}

TEST_CASE("same_on_all_ranks sees a bit, a shape and a dtype of one rank alone", "[n2][n4]") {
  const bool is_odd = ronde::rank() == ronde::size() - 1;
  CHECK(same_on_all_ranks(at::full({3}, std::nan(""))));
  CHECK_FALSE(same_on_all_ranks(at::full({3}, is_odd ? -0.0 : 0.0)));
  CHECK_FALSE(same_on_all_ranks(at::zeros({is_odd ? 4 : 3})));
  CHECK_FALSE(same_on_all_ranks(at::zeros({3}, is_odd ? at::kInt : at::kFloat)));
  CHECK(same_on_all_ranks(at::zeros({3})));
}

TEST_CASE("min and max propagate NaN", "[n2]") {
  const at::Tensor mine = at::full({3}, static_cast<double>(ronde::rank()), at::kFloat);
  if (ronde::rank() == ronde::size() - 1) mine[1] = std::nanf("");
  for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Max}) {
    const at::Tensor result = ronde::allreduce(mine, {.op = op});
    CHECK(std::isnan(result[1].item<float>()));
    CHECK_FALSE(std::isnan(result[0].item<float>()));
  }
}

TEST_CASE("tensors of every memory layout are reduced by index") {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
    const auto all = values_of_all(dtype, kSizes);
    const at::Tensor expected = expected_allreduce(all, ReduceOp::Sum);
    const at::Tensor& mine = mine_of(all);
    for (std::size_t i = 0; i < layouts().size(); ++i) {
      CAPTURE(c10::toString(dtype), i);
      // The next rank uses the next layout, so that layouts meet.
      const at::Tensor tensor = laid_out(mine, ronde::rank(), static_cast<std::int64_t>(i));
      REQUIRE(torch::equal(tensor, mine));
      const at::Tensor result = ronde::allreduce(tensor, {.op = ReduceOp::Sum});
      CHECK(result.is_contiguous());
      CHECK(torch::equal(result, expected));
      CHECK(torch::equal(tensor, mine));
      const auto strides = tensor.strides().vec();
      ronde::allreduce_(tensor, {.op = ReduceOp::Sum});
      CHECK(torch::equal(tensor, expected));
      CHECK(tensor.strides().vec() == strides);
    }
  }
}

TEST_CASE("writing into a view leaves the elements between untouched", "[n2]") {
  const at::Tensor wide = at::ones({4, 6});
  ronde::allreduce_(wide.slice(1, 0, 6, 2), {.op = ReduceOp::Sum});
  const at::Tensor untouched = wide.slice(1, 1, 6, 2);
  CHECK(torch::equal(untouched, at::ones_like(untouched)));
  CHECK(torch::equal(wide.slice(1, 0, 6, 2),
                     at::full({4, 3}, static_cast<double>(ronde::size()), at::kFloat)));
}

TEST_CASE("a strided tensor has its result when the work is done, whoever waits", "[n2]") {
  const at::Tensor tensor = at::ones({64, 64}).t();
  const at::Tensor view = tensor.slice(0, 0, 64, 2);
  // Only the plain handle is kept: the copy back is not TensorWork's doing.
  const ronde::Work work = ronde::allreduce_async_(view, {.op = ReduceOp::Sum});
  work.wait();
  CHECK(torch::equal(view, at::full_like(view, static_cast<double>(ronde::size()))));
}

TEST_CASE("tensors without dimensions and without elements take part") {
  const at::Tensor scalar = at::full({}, ronde::rank() + 1.0, at::kFloat);
  const at::Tensor sum = ronde::allreduce(scalar, {.op = ReduceOp::Sum});
  CHECK(sum.dim() == 0);
  CHECK(sum.item<float>() == static_cast<float>(ronde::size() * (ronde::size() + 1)) / 2);
  const at::Tensor empty = at::empty({3, 0, 2});
  CHECK(ronde::allreduce(empty).sizes() == empty.sizes());
  ronde::allreduce_(empty);
  CHECK(ronde::broadcast(empty).sizes() == empty.sizes());
  CHECK(ronde::allgather(empty).sizes() == at::IntArrayRef({3 * ronde::size(), 0, 2}));
  const at::Tensor rows = at::empty({ronde::size(), 0, 2});
  CHECK(ronde::reducescatter(rows).sizes() == at::IntArrayRef({1, 0, 2}));
  CHECK(ronde::alltoall(rows).sizes() == rows.sizes());
  const at::Tensor none = at::empty({0, 2});
  CHECK(ronde::reducescatter(none).sizes() == none.sizes());
  CHECK(ronde::alltoall(none).sizes() == none.sizes());
  const std::string advice = "a scalar has no first dimension to split along";
  check_refused([&] { ronde::reducescatter(scalar); }, {advice});
  check_refused([&] { ronde::alltoall(scalar); }, {advice});
}

TEST_CASE("an expanded tensor is read, but not written", "[n2]") {
  const at::Tensor plain = at::ones({2});
  const at::Tensor expanded = at::full({1}, ronde::rank() + 1.0).expand({4, 3});
  const at::Tensor sum = at::full({4, 3}, sum_to_size());
  CHECK(torch::equal(ronde::allreduce(expanded, {.op = ReduceOp::Sum}), sum));
  CHECK(torch::equal(ronde::grouped_allreduce({plain, expanded}, {.op = ReduceOp::Sum})[1], sum));
  check_refused([&] { ronde::allreduce_(expanded, {.name = "mask"}); },
                {"rank " + std::to_string(ronde::rank()), "\"mask\"", "contiguous()"});
  check_refused([&] { ronde::broadcast_(expanded); }, {"contiguous()"});
  check_refused(
      [&] {
        ronde::grouped_allreduce_({plain, expanded}, {.name = "masks"});
      },
      {"ronde::grouped_allreduce_(\"masks\"), tensor 1", "contiguous()"});
  CHECK(torch::equal(plain, at::ones({2})));
}

TEST_CASE("tensors that Ronde cannot move are refused before anything is sent", "[n2]") {
  const at::Tensor dense = at::ones({2, 2});
  const std::vector<std::pair<at::Tensor, std::string>> refusals = {
      {at::Tensor(), "undefined"},
      {at::empty({2}, at::TensorOptions().device(at::kMeta)), "meta"},
      {dense.to_sparse(), "to_dense()"},
      {dense.to_sparse_csr(), "to_dense()"},
      {at::quantize_per_tensor(dense, 0.1, 0, at::kQInt8), "dequantize()"},
      {at::ones({2}, at::kComplexFloat), "view_as_real"},
      {dense.to(at::kFloat8_e4m3fn), "Float8_e4m3fn"},
  };
  for (const auto& [tensor, advice] : refusals) {
    CAPTURE(advice);
    const std::vector<std::function<void()>> calls = {
        [&t = tensor] { ronde::allreduce(t, {.name = "x"}); },
        [&t = tensor] { ronde::allreduce_(t, {.name = "x"}); },
        [&t = tensor] { ronde::broadcast(t, {.name = "x"}); },
        [&t = tensor] { ronde::broadcast_(t, {.name = "x"}); },
        [&t = tensor] { ronde::allgather(t, {.name = "x"}); },
        [&t = tensor] { ronde::reducescatter(t, {.name = "x"}); },
        [&t = tensor] { ronde::alltoall(t, {}, {.name = "x"}); },
    };
    for (const auto& call : calls) {
      check_refused(call, {advice, "(\"x\")", "rank " + std::to_string(ronde::rank())});
    }
    const Tensors group = {dense, tensor};
    const std::vector<std::function<void()>> group_calls = {
        [&] { ronde::grouped_allreduce(group, {.name = "x"}); },
        [&] { ronde::grouped_allreduce_(group, {.name = "x"}); },
        [&] { ronde::grouped_allgather(group, {.name = "x"}); },
        [&] { ronde::grouped_reducescatter(group, {.name = "x"}); },
    };
    for (const auto& call : group_calls) check_refused(call, {advice, "(\"x\"), tensor 1"});
  }
  check_refused([] { ronde::grouped_allreduce({}); }, {"at least one operation"});
  CHECK(near(ronde::allreduce(dense, {.name = "x"}), dense, 0));
}

TEST_CASE("ranks that disagree on a shape all get a UsageError, and go on", "[n2][n4]") {
  const at::Tensor mine = at::ones({ronde::rank() == 0 ? 2 : 3});
  const ronde::TensorWork work = ronde::allreduce_async(mine, {.name = "differs"});
  const std::string text = check_refused([&] { work.wait(); }, {"differs"});
  CHECK(usage_error([&] { work.result(); }) == text);
  CHECK(near(ronde::allreduce(at::ones({2}), {.name = "differs"}), at::ones({2}), 0));
}

TEST_CASE("averaging bools is refused", "[n2]") {
  check_refused([] { ronde::allreduce(at::ones({2}, at::kBool)); }, {"average"});
}

TEST_CASE("a leaf that requires grad is written in place, and backward notices", "[n2]") {
  const at::Tensor leaf = at::full({3}, ronde::rank() + 1.0).requires_grad_();
  const at::Tensor loss = (leaf * leaf).sum();
  const auto version = leaf._version();
  ronde::allreduce_(leaf, {.op = ReduceOp::Sum});
  CHECK(leaf.requires_grad());
  CHECK(leaf.is_leaf());
  CHECK(leaf._version() > version);
  CHECK(torch::equal(leaf.detach(), at::full({3}, sum_to_size())));
  CHECK_THROWS_AS(loss.backward(), c10::Error);
}

TEST_CASE("inference tensors are taken", "[n2]") {
  const c10::InferenceMode inference;
  const at::Tensor tensor = at::ones({3});
  ronde::allreduce_(tensor, {.op = ReduceOp::Sum});
  CHECK(torch::equal(tensor, at::full({3}, static_cast<double>(ronde::size()))));
  const at::Tensor strided = at::ones({3, 4}).t();
  ronde::allreduce_(strided, {.op = ReduceOp::Sum});
  CHECK(torch::equal(strided, at::full({4, 3}, static_cast<double>(ronde::size()))));
}

TEST_CASE("a result is an inference tensor only where its own caller is in that mode", "[n1][n2]") {
  int wrong = 0;
  for (int i = 0; i < 50; ++i) {
    const ronde::TensorWork plain = ronde::allgather_async(at::ones({3}));
    // This thread runs Ronde's loop while it waits, so that it may make the other's result.
    std::thread([] {
      const c10::InferenceMode inference;
      ronde::allreduce_(at::ones({2}));
    }).join();
    if (plain.wait().is_inference()) ++wrong;
    ronde::TensorWork inferred = [] {
      const c10::InferenceMode inference;
      return ronde::allgather_async(at::ones({3}));
    }();
    ronde::barrier();
    if (!inferred.wait().is_inference()) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("broadcast takes the root's values in all four forms, dtypes and layouts") {
  const int root = ronde::size() - 1;
  for (const at::ScalarType dtype : kDtypes) {
    const auto all = values_of_all(dtype, kSizes);
    const at::Tensor& expected = all[static_cast<std::size_t>(root)];
    for (const Layout& layout : layouts()) {
      CAPTURE(c10::toString(dtype), layout.name);
      const at::Tensor mine = layout.make(mine_of(all));
      CHECK(torch::equal(ronde::broadcast(mine, {.root = root}), expected));
      CHECK(torch::equal(ronde::broadcast_async(mine, {.root = root}).wait(), expected));
      CHECK(torch::equal(mine, mine_of(all)));
      CHECK(ronde::broadcast_(mine, {.root = root}).is_same(mine));
      CHECK(torch::equal(mine, expected));
      const at::Tensor again = layout.make(mine_of(all));
      CHECK(ronde::broadcast_async_(again, {.root = root}).wait().is_same(again));
      CHECK(torch::equal(again, expected));
    }
  }
}

TEST_CASE("a broadcast from a rank that does not exist is refused", "[n2]") {
  check_refused([] { ronde::broadcast(at::ones({2}), {.root = ronde::size()}); },
                {std::to_string(ronde::size())});
}

TEST_CASE("allgather joins first dimensions of any length in rank order") {
  for (const at::ScalarType dtype : kDtypes) {
    Tensors all;
    // Rank 0 has nothing, rank r has r rows.
    for (int r = 0; r < ronde::size(); ++r) all.push_back(values(dtype, {r, 3}, r));
    const at::Tensor& mine = mine_of(all);
    CAPTURE(c10::toString(dtype));
    CHECK(torch::equal(ronde::allgather(mine), at::cat(all)));
    const at::Tensor strided = mine.t().contiguous().t();
    CHECK(torch::equal(ronde::allgather_async(strided).wait(), at::cat(all)));
  }
  const at::Tensor scalars = ronde::allgather(at::full({}, ronde::rank(), at::kLong));
  CHECK(torch::equal(scalars, at::arange(ronde::size(), at::kLong)));
}

TEST_CASE("reducescatter gives each rank its rows of the reduction") {
  for (const at::ScalarType dtype : kDtypes) {
    for (const ReduceOp op : ronde::kElementwiseOps) {
      if (dtype == at::kBool && op == ReduceOp::Average) continue;
      for (const std::int64_t rows : {1, 4, 7}) {
        CAPTURE(c10::toString(dtype), to_string(op), rows);
        const Tensors all = values_of_all(dtype, {rows, 3});
        const at::Tensor whole = expected_allreduce(all, op);
        // As even as can be, the first ranks have one row more: this is tensor_split.
        const at::Tensor expected =
            at::tensor_split(whole, ronde::size())[static_cast<std::size_t>(ronde::rank())];
        const at::Tensor& mine = mine_of(all);
        const double tolerance = dtype == at::kHalf ? 1e-3 : dtype == at::kBFloat16 ? 8e-3 : 1e-6;
        const at::Tensor strided = mine.t().contiguous().t();
        for (const at::Tensor& got : {ronde::reducescatter(mine, {.op = op}),
                                      ronde::reducescatter_async(strided, {.op = op}).wait()}) {
          CHECK(got.scalar_type() == dtype);
          CHECK(got.sizes() == expected.sizes());
          CHECK(near(got, expected, tolerance));
        }
      }
    }
  }
}

TEST_CASE("reductions average by default, and scale before and after", "[n2][n4]") {
  const double size = ronde::size();
  struct Row {
    ReduceOp op;
    double prescale;
    double postscale;
    double factor;  // of the mean
  };
  for (const Row& row : {Row{ReduceOp::Average, 1, 1, 1}, Row{ReduceOp::Average, 3, 0.25, 0.75},
                         Row{ReduceOp::Sum, -2, 0.5, -size}}) {
    CAPTURE(row.factor);
    const at::Tensor mine = full({ronde::size()}, 4.0 * ronde::rank() + 2.0);
    const double expected = row.factor * (4.0 * mean_rank() + 2.0);
    const ronde::AllreduceOptions all = {
        .op = row.op, .prescale = row.prescale, .postscale = row.postscale};
    const ronde::ReducescatterOptions scattered = {
        .op = row.op, .prescale = row.prescale, .postscale = row.postscale};
    CHECK(near(ronde::allreduce(mine, all), full({ronde::size()}, expected), 1e-14));
    CHECK(near(ronde::grouped_allreduce({mine, mine}, all)[1], full({ronde::size()}, expected),
               1e-14));
    for (const at::Tensor& rows :
         {ronde::reducescatter(mine, scattered), ronde::grouped_reducescatter({mine}, scattered)[0],
          ronde::grouped_reducescatter_async({mine}, scattered).wait()[0]}) {
      CHECK(near(rows, full({1}, expected), 1e-14));
    }
  }
  CHECK(near(ronde::allreduce(full({1}, ronde::rank())), full({1}, mean_rank()), 1e-14));
  CHECK(
      near(ronde::grouped_allreduce({full({1}, ronde::rank())})[0], full({1}, mean_rank()), 1e-14));
}

TEST_CASE("alltoall sends rows by splits and says how many came") {
  const int size = ronde::size();
  // Rank r sends r + 2 s rows to rank s; rank 0 sends itself none.
  const auto splits_of = [size](int from) {
    std::vector<std::int64_t> splits;
    for (int to = 0; to < size; ++to) splits.push_back(from + 2 * to);
    return splits;
  };
  for (const at::ScalarType dtype : kDtypes) {
    CAPTURE(c10::toString(dtype));
    Tensors parts;
    std::vector<std::int64_t> received;
    at::Tensor mine;
    for (int from = 0; from < size; ++from) {
      const std::vector<std::int64_t> splits = splits_of(from);
      const std::int64_t rows = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
      const at::Tensor theirs = values(dtype, {rows, 2}, from);
      if (from == ronde::rank()) mine = theirs;
      const auto own = static_cast<std::size_t>(ronde::rank());
      parts.push_back(at::split_with_sizes(theirs, splits)[own]);
      received.push_back(splits[own]);
    }
    const at::Tensor strided = mine.t().contiguous().t();
    const ronde::TensorWork work =
        ronde::alltoall_async(strided, splits_of(ronde::rank()), {.name = "route"});
    CHECK(torch::equal(work.wait(), at::cat(parts)));
    CHECK(work.received_splits() == received);
    CHECK(torch::equal(ronde::alltoall(mine, splits_of(ronde::rank())), at::cat(parts)));
  }
  const at::Tensor even = ronde::alltoall(at::full({2 * size}, ronde::rank(), at::kLong));
  CHECK(torch::equal(even, at::arange(size, at::kLong).repeat_interleave(2)));
}

TEST_CASE("splits that do not add up on one rank are refused on all, and the job goes on", "[n2]") {
  const at::Tensor rows = at::ones({4});
  const std::vector<std::int64_t> wrong = {3, 2};
  const ronde::TensorWork work = ronde::alltoall_async(
      rows, ronde::rank() == 0 ? at::IntArrayRef(wrong) : at::IntArrayRef(), {.name = "route"});
  const std::string text =
      check_refused([&] { work.wait(); },
                    {"alltoall 'route' is impossible:\n  rank 0: splits [3, 2] do not add up"});
  CHECK(usage_error([&] { work.received_splits(); }) == text);
  CHECK(torch::equal(ronde::alltoall(rows, {}, {.name = "route"}), rows));
}

TEST_CASE("many operations in flight complete in any order of submission") {
  constexpr int kCount = 50;
  std::vector<ronde::TensorWork> works(kCount);
  for (int i = 0; i < kCount; ++i) {
    // Even ranks go up, odd ones down.
    const int k = ronde::rank() % 2 == 0 ? i : kCount - 1 - i;
    works[static_cast<std::size_t>(k)] = ronde::allreduce_async(
        at::full({k + 1}, static_cast<double>(k)), {.name = std::to_string(k)});
  }
  for (int k = 0; k < kCount; ++k) {
    const at::Tensor result = works[static_cast<std::size_t>(k)].wait();
    CHECK(torch::equal(result, at::full({k + 1}, static_cast<double>(k))));
    CHECK(works[static_cast<std::size_t>(k)].done());
    CHECK(works[static_cast<std::size_t>(k)].result().is_same(result));
  }
}

TEST_CASE("asking for a pending result is refused, and harms nothing", "[n2]") {
  ronde::TensorWork work;
  CHECK(work.done());
  CHECK_FALSE(work.wait().defined());
  // Rank 1 submits only after rank 0 has seen that the work is pending.
  if (ronde::rank() == 0) {
    work = ronde::allreduce_async(at::ones({2}), {.name = "late"});
    check_refused([&] { work.result(); }, {"wait()"});
    ronde::barrier();
  } else {
    ronde::barrier();
    work = ronde::allreduce_async(at::ones({2}), {.name = "late"});
  }
  CHECK(torch::equal(work.wait_host(), at::ones({2})));
}

}  // namespace ronde_test::collectives_test
