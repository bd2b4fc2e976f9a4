// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/support.h"

namespace ronde_test::sparse_test {
namespace {

constexpr std::int64_t kWords = 12;
constexpr std::int64_t kWidth = 3;

torch::nn::Embedding make_embedding(bool sparse) {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(kWords, kWidth).sparse(sparse));
  embedding->to(at::kDouble);
  fill_normal(embedding->parameters(), 61);
  return embedding;
}

/// Of words with repetitions, another number on each rank.
at::Tensor loss_of(torch::nn::Embedding& embedding, int rank) {
  const at::Tensor words = (normal({3 + 2 * rank}, rank).abs() * 5).to(at::kLong);
  return embedding->forward(words.clamp(0, kWords - 1)).pow(2).sum() * (rank + 1.0);
}

TEST_CASE("sparse complex gradients are summed, and a scaler divides dense ones", "[n1][n2]") {
  const auto gradient_of = [](int rank) {
    const at::Tensor rows = at::tensor({rank, 2, 2, rank + 3}, at::kLong).view({1, 4});
    const at::Tensor values = at::view_as_complex(normal({4, 2, 2}, 60 + rank));
    return at::sparse_coo_tensor(rows, values.conj(), {6, 2});
  };
  const at::Tensor p = at::zeros({6, 2}, at::kComplexDouble).requires_grad_();
  auto optimizer = wrapped_sgd({{"p", p}}, {.op = ReduceOp::Sum, .postscale = 0.5});
  p.mutable_grad() = gradient_of(ronde::rank());
  optimizer.step();
  CHECK(p.grad().is_sparse());
  at::Tensor expected = at::zeros({6, 2}, at::kComplexDouble);
  for (const at::Tensor& gradient : by_rank(gradient_of)) expected -= 0.5 * gradient.to_dense();
  CHECK(near(flatten({p}), flatten({expected}), 1e-12));
  ronde::GradScaler scaler({.init_scale = 8});
  optimizer.zero_grad();
  scaler.scale(at::view_as_real(p * c10::complex<double>(0, 1)).sum()).backward();
  scaler.step(optimizer);
  expected -= c10::complex<double>(0.5, -0.5) * ronde::size();
  CHECK(near(flatten({p}), flatten({expected}), 1e-12));
}

TEST_CASE("a rank without a sparse gradient takes part, if it knows", "[n2][n3]") {
  for (const bool told : {true, false}) {
    torch::nn::Embedding embedding = make_embedding(true);
    DistributedOptimizerOptions options;
    if (told) options.sparse_parameters = {embedding->weight};
    auto optimizer = wrapped_sgd(embedding->named_parameters(), options);
    const auto use = [&](bool is_used) {
      optimizer.zero_grad();
      if (is_used) loss_of(embedding, 0).backward();
    };
    const auto use_nowhere = [&] {
      use(false);
      optimizer.step();
      CHECK_FALSE(embedding->weight.grad().defined());
    };
    if (told) {
      use(ronde::rank() == 0);
      optimizer.synchronize();
      REQUIRE(embedding->weight.grad().defined());
      torch::nn::Embedding whole = make_embedding(false);
      (loss_of(whole, 0) / ronde::size()).backward();
      CHECK(near(embedding->weight.grad().to_dense(), whole->weight.grad(), 1e-12));
      optimizer.step();
      use_nowhere();
      continue;
    }
    // The others cannot know: the first step fails on all of them, and says what to do.
    use(ronde::rank() == 0);
    const std::string text = usage_error([&] { optimizer.step(); });
    CAPTURE(text);
    CHECK((ronde::rank() != 0 || contains(text, "sparse_parameters")));
    CHECK(contains(text, "weight"));
    // A refused kind is forgotten if no rank has a gradient next.
    for (int step = 0; step < 2; ++step) use_nowhere();
    // Afterwards the ranks know the kind.
    use(true);
    optimizer.step();
    use(ronde::rank() == 0);
    optimizer.step();
    REQUIRE(embedding->weight.grad().defined());
    CHECK(same_on_all_ranks(embedding->weight.detach()));
  }
}

TEST_CASE("a gradient without entries is told from none", "[n2]") {
  torch::nn::Embedding embedding = make_embedding(true);
  auto optimizer =
      wrapped_sgd(embedding->named_parameters(), {.sparse_parameters = {embedding->weight}});
  if (ronde::rank() == 0) embedding->forward(at::empty({0}, at::kLong)).sum().backward();
  optimizer.synchronize();
  REQUIRE(embedding->weight.grad().defined());
  CHECK(embedding->weight.grad()._nnz() == 0);
}

TEST_CASE("sparse halves are scaled before and rounded after they are added up", "[n2][n3]") {
  const auto reduced = [](const at::Tensor& gradient, const DistributedOptimizerOptions& options) {
    const at::Tensor p = at::zeros({4, 1}, gradient.scalar_type()).requires_grad_();
    auto optimizer = wrapped_sgd({{"p", p}}, options);
    p.mutable_grad() = gradient;
    optimizer.synchronize();
    CHECK(p.grad().scalar_type() == gradient.scalar_type());
    return p.grad().to_dense().to(at::kDouble)[1][0].item<double>();
  };
  // One entry a value, all of them in row 1.
  const auto entries = [](const std::vector<double>& values, at::ScalarType dtype) {
    const auto count = static_cast<std::int64_t>(values.size());
    return at::sparse_coo_tensor(at::ones({1, count}, at::kLong),
                                 at::tensor(values, at::kDouble).to(dtype).view({count, 1}),
                                 {4, 1});
  };
  const double ranks = ronde::size();
  // The sum of all ranks has no f16 before it is scaled, by whichever option.
  CHECK(reduced(entries({61440}, at::kHalf), {.op = ReduceOp::Sum, .prescale = 0.25}) ==
        15360 * ranks);
  CHECK(reduced(entries({60000}, at::kHalf), {.gradient_predivide_factor = ranks}) ==
        Approx(60000).epsilon(1e-3));
  // f16 does not have this value without the prescale.
  CHECK(reduced(entries({204800}, at::kFloat),
                {.op = ReduceOp::Sum, .prescale = 0.25, .compression = Compression::fp16()}) ==
        51200 * ranks);
  // 1 is half a unit in the last place of 2048: added one by one, each is rounded away.
  const std::vector<double> own =
      ronde::rank() == 0 ? std::vector<double>{2048, 1, 1} : std::vector<double>{0};
  CHECK(reduced(entries(own, at::kHalf), {.op = ReduceOp::Sum}) == 2050);
  CHECK(reduced(entries({ronde::rank() == 0 ? 2048.0 : 1.0}, at::kHalf), {.op = ReduceOp::Sum}) ==
        (ronde::size() == 3 ? 2050 : 2048));
}

TEST_CASE("values of sparse_allreduce travel in its wire_dtype", "[n2]") {
  const at::Tensor dense = normal({6, 4}, 5 + ronde::rank(), at::kFloat);
  const auto bytes_of = [&](const AllreduceOptions& options, at::Tensor& result) {
    const std::uint64_t before = counted("execution", "bytes");
    result = ronde::sparse_allreduce(dense.to_sparse(1), options).to_dense();
    return counted("execution", "bytes") - before;
  };
  at::Tensor exact, rounded;
  const std::uint64_t plain = bytes_of({}, exact);
  const std::uint64_t halved = bytes_of({.wire_dtype = ronde::DataType::BF16}, rounded);
  // The values of both ranks, or of one: as the engine counts gathered bytes.
  const std::uint64_t saved = plain - halved;
  CHECK((saved == dense.nbytes() / 2 || saved == dense.nbytes()));
  at::Tensor expected = at::zeros({6, 4});
  for (int r = 0; r < ronde::size(); ++r) {
    expected += normal({6, 4}, 5 + r, at::kFloat).to(at::kBFloat16).to(at::kFloat);
  }
  CHECK(torch::equal(rounded, expected / ronde::size()));
  CHECK_FALSE(torch::equal(rounded, exact));
  const at::Tensor halves = dense.to(at::kHalf).to_sparse(1);
  const AllreduceOptions other_half = {.wire_dtype = ronde::DataType::BF16};
  check_refused([&] { ronde::sparse_allreduce(halves, other_half); }, {"wire_dtype is bf16"});
}

TEST_CASE("sparse_allreduce equals the dense one", "[n1][n2][n3]") {
  std::vector<ProcessSet> sets = {ProcessSet()};
  if (ronde::size() == 3) sets.push_back(ronde::add_process_set({2, 0}));
  for (const ProcessSet set : sets) {
    if (!ronde::rank_in(set)) continue;
    for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum}) {
      for (const std::int64_t sparse_dims : {1, 2}) {
        // Every rank has other entries, rank 0 none.
        const double least = ronde::rank() == 0 ? 100.0 : 0.3;
        const at::Tensor dense = normal({6, 4}, 5 + ronde::rank()).clamp_min(least) - least;
        const AllreduceOptions options{
            .op = op, .prescale = 2.0, .postscale = 0.25, .process_set = set};
        const at::Tensor result = ronde::sparse_allreduce(dense.to_sparse(sparse_dims), options);
        CHECK(result.is_coalesced());
        CHECK(near(result.to_dense(), ronde::allreduce(dense, options), 1e-14));
      }
    }
  }
  check_refused([] { ronde::sparse_allreduce(at::ones({2}), {.name = "x"}); },
                {"sparse_allreduce(\"x\") (f32 [2] on cpu): the tensor is not sparse"});
  check_refused([] { ronde::sparse_allreduce(at::ones({2}).to_sparse(), {.op = ReduceOp::Max}); },
                {"op is max"});
}

TEST_CASE("sparse gradients refuse what has no sparse form", "[n2]") {
  torch::nn::Embedding embedding = make_embedding(true);
  for (const bool as_dense : {false, true}) {
    auto optimizer = wrapped_sgd(embedding->named_parameters(),
                                 {.op = ReduceOp::Max, .sparse_as_dense = as_dense});
    loss_of(embedding, ronde::rank()).backward();
    if (as_dense) {
      optimizer.step();
    } else {
      check_refused([&] { optimizer.step(); }, {"sparse_as_dense", "max"});
    }
    embedding->weight.mutable_grad().reset();
  }
}

}  // namespace
}  // namespace ronde_test::sparse_test
