// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numeric>
#include <thread>

#include "tests/torch/layouts.h"

namespace ronde_test::collectives_test {
namespace {

const std::vector<std::int64_t> kSizes = {2, 3, 4, 5};

// In double precision, then as Ronde documents each dtype.
at::Tensor expected_allreduce(const Tensors& all, ReduceOp op) {
  const at::ScalarType dtype = all[0].scalar_type();
  const at::Tensor result = reduced(op, at::stack(all).to(at::kDouble));
  if (dtype == at::kBool) return result.ne(0);
  return (at::isFloatingType(dtype) ? result : result.trunc()).to(dtype);
}

TEST_CASE("allreduce agrees with a double-precision oracle for every dtype, op and layout") {
  std::int64_t number = 0;
  for (const at::ScalarType dtype : kDtypes) {
    for (const ReduceOp op : ronde::kElementwiseOps) {
      ++number;
      if (dtype == at::kBool && op == ReduceOp::Average) continue;
      CAPTURE(c10::toString(dtype), to_string(op), number);
      const Tensors all = numbers_of_all(kSizes, dtype);
      check_allreduce([&] { return laid_out(mine_of(all), ronde::rank(), number); },
                      expected_allreduce(all, op), {.op = op});
    }
    ++number;  // so that each op meets every layout
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

TEST_CASE("adasum of tensors is that of pairs of neighbours, whatever their layout") {
  const Tensors all = by_rank([](int rank) { return normal({5, 3}, 60 + rank); });
  const at::Tensor own = column_major(mine_of(all));
  CHECK(near(ronde::allreduce(own, {.op = ReduceOp::Adasum}), adasum(all), 1e-12));
}

TEST_CASE("a view has its result once the work is done, and the elements between stay", "[n2]") {
  const at::Tensor tensor = at::ones({64, 64}).t(), view = tensor.slice(0, 0, 64, 2);
  const at::Tensor between = tensor.slice(0, 1, 64, 2);
  // Only the plain handle is kept: the copy back is not TensorWork's doing.
  const ronde::Work work = ronde::allreduce_async_(view, {.op = ReduceOp::Sum});
  work.wait();
  CHECK(torch::equal(view, at::full_like(view, static_cast<double>(ronde::size()))));
  CHECK(torch::equal(between, at::ones_like(between)));
}

TEST_CASE("tensors without dimensions and without elements take part") {
  const at::Tensor scalar = at::full({}, ronde::rank() + 1.0, at::kFloat);
  const at::Tensor sum = ronde::allreduce(scalar, {.op = ReduceOp::Sum});
  CHECK(sum.dim() == 0);
  CHECK(sum.item<float>() == sum_to_size());
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
  const Tensors both = {plain, expanded};
  const at::Tensor sum = at::full({4, 3}, sum_to_size());
  CHECK(torch::equal(ronde::allreduce(expanded, {.op = ReduceOp::Sum}), sum));
  CHECK(torch::equal(ronde::grouped_allreduce(both, {.op = ReduceOp::Sum})[1], sum));
  check_refused([&] { ronde::allreduce_(expanded, {.name = "mask"}); },
                {"rank " + std::to_string(ronde::rank()), "\"mask\"", "contiguous()"});
  check_refused([&] { ronde::broadcast_(expanded); }, {"contiguous()"});
  check_refused([&] { ronde::grouped_allreduce_(both, {.name = "masks"}); },
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
  };
  const std::vector<std::function<void(const at::Tensor&)>> calls = {
      [](const at::Tensor& t) { ronde::allreduce(t, {.name = "x"}); },
      [](const at::Tensor& t) { ronde::allreduce_(t, {.name = "x"}); },
      [](const at::Tensor& t) { ronde::broadcast(t, {.name = "x"}); },
      [](const at::Tensor& t) { ronde::broadcast_(t, {.name = "x"}); },
      [](const at::Tensor& t) { ronde::allgather(t, {.name = "x"}); },
      [](const at::Tensor& t) { ronde::reducescatter(t, {.name = "x"}); },
      [](const at::Tensor& t) { ronde::alltoall(t, {}, {.name = "x"}); },
  };
  const std::vector<std::function<void(const Tensors&)>> group_calls = {
      [](const Tensors& group) { ronde::grouped_allreduce(group, {.name = "x"}); },
      [](const Tensors& group) { ronde::grouped_allreduce_(group, {.name = "x"}); },
      [](const Tensors& group) { ronde::grouped_allgather(group, {.name = "x"}); },
      [](const Tensors& group) { ronde::grouped_reducescatter(group, {.name = "x"}); },
  };
  const std::string here = "rank " + std::to_string(ronde::rank());
  for (const auto& [tensor, advice] : refusals) {
    CAPTURE(advice);
    for (const auto& call : calls) {
      check_refused([&, &t = tensor] { call(t); }, {advice, "(\"x\")", here});
    }
    for (const auto& call : group_calls) {
      check_refused([&, &t = tensor] { call({dense, t}); }, {advice, "(\"x\"), tensor 1"});
    }
  }
  check_refused([] { ronde::grouped_allreduce({}); }, {"at least one operation"});
  check_refused([] { ronde::allreduce(at::ones({2}, at::kBool)); }, {"average"});
  const at::Tensor counts = at::ones({3}, at::kLong);
  check_refused([&] { ronde::allreduce(counts, {.op = ReduceOp::Adasum}); }, {"adasum"});
  check_refused([&] { ronde::broadcast(dense, {.root = 2}); }, {"root 2 is out of range"});
  CHECK(near(ronde::allreduce(dense, {.name = "x"}), dense, 0));
}

TEST_CASE("ranks that disagree on a shape all get a UsageError, and go on", "[n2][n4]") {
  const at::Tensor mine = at::ones({ronde::rank() == 0 ? 2 : 3});
  const TensorWork work = ronde::allreduce_async(mine, {.name = "differs"});
  const std::string text = check_refused([&] { work.wait(); }, {"differs"});
  CHECK(usage_error([&] { work.result(); }) == text);
  CHECK(near(ronde::allreduce(at::ones({2}), {.name = "differs"}), at::ones({2}), 0));
}

TEST_CASE("a result is an inference tensor only where its own caller is in that mode", "[n1][n2]") {
  const auto inferring = [](const auto& function) {
    const c10::InferenceMode inference;
    return function();
  };
  inferring([] {
    for (const at::Tensor& tensor : {at::ones({4, 3}), at::ones({3, 4}).t()}) {
      ronde::allreduce_(tensor, {.op = ReduceOp::Sum});
      CHECK(torch::equal(tensor, at::full({4, 3}, static_cast<double>(ronde::size()))));
    }
  });
  int wrong = 0;
  for (int i = 0; i < 50; ++i) {
    const TensorWork plain = ronde::allgather_async(at::ones({3}));
    // This thread runs Ronde's loop while it waits, so that it may make the other's result.
    std::thread([&] {
      inferring([] { return ronde::allreduce_(at::ones({2}), {.name = "x"}); });
    }).join();
    if (plain.wait().is_inference()) ++wrong;
    TensorWork inferred = inferring([] { return ronde::allgather_async(at::ones({3})); });
    ronde::barrier();
    if (!inferred.wait().is_inference()) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("broadcast takes the root's values in all four forms, dtypes and layouts") {
  const int root = ronde::size() - 1;
  for (const at::ScalarType dtype : kMovedDtypes) {
    const auto all = numbers_of_all(kSizes, dtype);
    const at::Tensor& expected = all[static_cast<std::size_t>(root)];
    for (const Layout& layout : layouts()) {
      CAPTURE(c10::toString(dtype), layout.name);
      const at::Tensor mine = layout.make(mine_of(all));
      CHECK(same_bits(ronde::broadcast(mine, {.root = root}), expected));
      CHECK(same_bits(ronde::broadcast_async(mine, {.root = root}).wait(), expected));
      CHECK(same_bits(mine, mine_of(all)));
      CHECK(ronde::broadcast_(mine, {.root = root}).is_same(mine));
      CHECK(same_bits(mine, expected));
      const at::Tensor again = layout.make(mine_of(all));
      CHECK(ronde::broadcast_async_(again, {.root = root}).wait().is_same(again));
      CHECK(same_bits(again, expected));
    }
  }
}

TEST_CASE("allgather joins first dimensions of any length in rank order") {
  for (const at::ScalarType dtype : kMovedDtypes) {
    CAPTURE(c10::toString(dtype));
    // Rank 0 has nothing, rank r has r rows.
    const Tensors all = by_rank([&](int r) { return whole_numbers({r, 3}, r, 0, dtype); });
    CHECK(same_bits(ronde::allgather(mine_of(all)), at::cat(all)));
    const at::Tensor strided = column_major(mine_of(all));
    CHECK(same_bits(ronde::allgather_async(strided).wait(), at::cat(all)));
    const Tensors scalars = by_rank([&](int r) { return whole_numbers({}, r, 1, dtype); });
    CHECK(same_bits(ronde::grouped_allgather({mine_of(scalars)})[0], at::stack(scalars)));
    CHECK(same_bits(ronde::broadcast(mine_of(scalars)), scalars[0]));
  }
}

TEST_CASE("reducescatter gives each rank its rows of the reduction") {
  for (const at::ScalarType dtype : kDtypes) {
    for (const ReduceOp op : ronde::kElementwiseOps) {
      if (dtype == at::kBool && op == ReduceOp::Average) continue;
      for (const std::int64_t rows : {1, 4, 7}) {
        CAPTURE(c10::toString(dtype), to_string(op), rows);
        const Tensors all = numbers_of_all({rows, 3}, dtype);
        // tensor_split() divides in the same way.
        const at::Tensor expected =
            mine_of(at::tensor_split(expected_allreduce(all, op), ronde::size()));
        const at::Tensor strided = column_major(mine_of(all));
        for (const at::Tensor& got : {ronde::reducescatter(mine_of(all), {.op = op}),
                                      ronde::reducescatter_async(strided, {.op = op}).wait()}) {
          CHECK(equal({got}, {expected}));
        }
      }
    }
  }
}

TEST_CASE("reductions average by default, and scale before and after", "[n2][n4]") {
  const std::vector<std::pair<AllreduceOptions, double>> factors_of_mean = {
      {{}, 1.0},
      {{.prescale = 3, .postscale = 0.25}, 0.75},
      {{.op = ReduceOp::Sum, .prescale = -2, .postscale = 0.5}, -1.0 * ronde::size()}};
  for (const auto& [options, factor] : factors_of_mean) {
    CAPTURE(factor);
    const auto make = [] { return full({ronde::size()}, 4.0 * ronde::rank() + 2.0); };
    const double expected = factor * (4.0 * mean_rank() + 2.0);
    check_allreduce(make, full({ronde::size()}, expected), options);
    const ronde::ReducescatterOptions scattered = {
        .op = options.op, .prescale = options.prescale, .postscale = options.postscale};
    for (const at::Tensor& row :
         {ronde::reducescatter(make(), scattered),
          ronde::grouped_reducescatter({make()}, scattered)[0],
          ronde::grouped_reducescatter_async({make()}, scattered).wait()[0]}) {
      CHECK(torch::equal(row, full({1}, expected)));
    }
  }
}

TEST_CASE("alltoall sends rows by splits and says how many came") {
  const int size = ronde::size();
  // Rank r sends r + 2 s rows to rank s; rank 0 sends itself none.
  const auto splits = by_rank([size](int from) {
    std::vector<std::int64_t> rows;
    for (int to = 0; to < size; ++to) rows.push_back(from + 2 * to);
    return rows;
  });
  const auto received = by_rank([&](int from) { return mine_of(splits[index(from)]); });
  for (const at::ScalarType dtype : kMovedDtypes) {
    CAPTURE(c10::toString(dtype));
    const Tensors all = by_rank([&](int from) {
      const auto& sent = splits[index(from)];
      const auto rows = std::accumulate(sent.begin(), sent.end(), std::int64_t{0});
      return whole_numbers({rows, 2}, from, 0, dtype);
    });
    const at::Tensor expected = at::cat(by_rank([&](int from) {
      return mine_of(at::split_with_sizes(all[index(from)], splits[index(from)]));
    }));
    const TensorWork work =
        ronde::alltoall_async(column_major(mine_of(all)), mine_of(splits), {.name = "route"});
    CHECK(same_bits(work.wait(), expected));
    CHECK(work.received_splits() == received);
    CHECK(same_bits(ronde::alltoall(mine_of(all), mine_of(splits)), expected));
  }
  const at::Tensor even = ronde::alltoall(at::full({2 * size}, ronde::rank(), at::kLong));
  CHECK(torch::equal(even, at::arange(size, at::kLong).repeat_interleave(2)));
}

TEST_CASE("splits that do not add up on one rank are refused on all, and the job goes on", "[n2]") {
  const at::Tensor rows = at::ones({4});
  const std::vector<std::int64_t> wrong = {3, 2};
  const TensorWork work = ronde::alltoall_async(
      rows, ronde::rank() == 0 ? at::IntArrayRef(wrong) : at::IntArrayRef(), {.name = "route"});
  const std::string text =
      check_refused([&] { work.wait(); },
                    {"alltoall 'route' is impossible:\n  rank 0: splits [3, 2] do not add up"});
  CHECK(usage_error([&] { work.received_splits(); }) == text);
  CHECK(torch::equal(ronde::alltoall(rows, {}, {.name = "route"}), rows));
}

TEST_CASE("asking for a pending result is refused, and harms nothing", "[n2]") {
  TensorWork work;
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
  CHECK((work.done() && work.result().is_same(work.wait())));
}

TEST_CASE("two operations in flight on one tensor are refused, in any layout", "[n2]") {
  const at::Tensor matrix = at::ones({4, 6}), turned = matrix.t(), column = matrix.select(1, 2);
  const std::vector<std::pair<at::Tensor, at::Tensor>> rows = {
      {matrix, matrix}, {matrix.flatten(), matrix[3]},
      {turned, turned}, {turned, matrix},
      {column, column}, {matrix, column}};
  for (const auto& [first, second] : rows) {
    first.fill_(ronde::rank() + 1.0);
    // Rank 1 waits for rank 0 to submit, whose second therefore finds its first in flight.
    if (ronde::rank() == 1) ronde::barrier();
    const TensorWork work = ronde::allreduce_async_(first, {.name = "a", .op = ReduceOp::Sum});
    if (ronde::rank() == 0) {
      check_refused([&, &t = second] { ronde::allreduce_async_(t, {.name = "b"}); },
                    {"rank 0: allreduce 'b'", "that allreduce 'a' writes its result to",
                     "wait for that operation first"});
      ronde::barrier();
    }
    CHECK(torch::equal(work.wait_host(), at::full_like(first, sum_to_size())));
  }
  const Tensors twice = {matrix, matrix};
  check_refused([&] { ronde::grouped_allreduce_(twice); },
                {"memory that allreduce", "list a tensor once in a group"});
  // Matched by the order of calls, which what was refused is no part of.
  CHECK(torch::equal(ronde::allreduce(at::ones({2})), at::ones({2})));
}

TEST_CASE("columns of one matrix in flight, and one input that a group reads twice, stay valid") {
  const at::Tensor matrix = at::full({5, 3}, ronde::rank() + 1.0);
  std::vector<TensorWork> works;
  for (std::int64_t i = 0; i < 3; ++i) {
    works.push_back(ronde::allreduce_async_(matrix.select(1, i), {.op = ReduceOp::Sum}));
  }
  for (const TensorWork& work : works) work.wait_host();
  const at::Tensor sum = at::full({5, 3}, sum_to_size());
  CHECK(torch::equal(matrix, sum));
  CHECK(equal(ronde::grouped_allreduce({matrix, matrix}), {sum, sum}));
}

}  // namespace
}  // namespace ronde_test::collectives_test
