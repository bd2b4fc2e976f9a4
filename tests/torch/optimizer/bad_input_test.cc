// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "tests/torch/optimizer/failing.h"

namespace ronde_test::bad_input_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Parameters of two and of three elements, whose gradients are what the factors say.
struct Pair {
  void backward(double of_a, double of_b) const { (a.sum() * of_a + b.sum() * of_b).backward(); }
  std::string refused(const DistributedOptimizerOptions& options) {
    return usage_error([&] { DistributedOptimizer optimizer(sgd, names, options); });
  }
  const at::Tensor a = ones_parameter({2}), b = ones_parameter({3});
  const Names names = {{"a", a}, {"b", b}};
  torch::optim::SGD sgd{{a, b}, 1.0};
};

TEST_CASE("options that make no sense are refused, with what to do", "[n1][n2]") {
  Pair pair;
  const at::Tensor other = at::ones({5});
  const std::vector<std::pair<DistributedOptimizerOptions, std::string>> cases = {
      {{.gradient_predivide_factor = 0.0}, "gradient_predivide_factor is 0"},
      {{.gradient_predivide_factor = -1.0}, "greater than zero"},
      {{.gradient_predivide_factor = kNan}, "finite"},
      {{.op = ReduceOp::Sum, .gradient_predivide_factor = 2.0}, "Use prescale"},
      {{.groups = -1}, "groups is -1"},
      {{.groups = {{pair.a, pair.b}, {pair.a}}}, "\"a\" is in them twice"},
      {{.groups = {{pair.a}}, .local_parameters = {pair.a}}, "does not travel"},
      {{.groups = {{other}}}, "groups has a tensor (f32 [5] on cpu)"},
      {{.local_parameters = {other}}, "local_parameters has a tensor"},
      {{.sparse_parameters = {other}},
       "sparse_parameters has a tensor (f32 [5] on cpu) that is no"},
      {{.op = ReduceOp::Adasum, .groups = 1}, "adasum_of_deltas"},
      {{.op = ReduceOp::Adasum, .compression = std::make_shared<Fragile>()}, "compression fragile"},
      {{.backward_passes_per_step = 0}, "at least 1"},
      {{.prescale = 0.0}, "prescale"},
      {{.prescale = kInfinity}, "finite"}};
  for (const auto& [options, part] : cases) {
    check_contains(pair.refused(options), {part, "rank 0: "});
  }
  const DistributedOptimizer optimizer(pair.sgd, pair.names);  // nothing of them stays
}

TEST_CASE("options that differ between ranks are refused on all of them", "[n2][n3]") {
  Pair pair;
  const bool is_first = ronde::rank() == 0;
  const auto differing = [&](const DistributedOptimizerOptions& mine,
                             const DistributedOptimizerOptions& others, const std::string& part) {
    check_contains(pair.refused(is_first ? mine : others), {"the ranks differ", part});
  };
  differing({.gradient_predivide_factor = 2.0}, {}, "gradient_predivide_factor 2");
  differing({.groups = 2}, {}, "in group 0");
  differing({.groups = {{pair.a}, {pair.b}}}, {.groups = {{pair.b}, {pair.a}}}, "in group 0");
  differing({.compression = Compression::fp16()}, {.compression = Compression::bf16()},
            "compression fp16");
  differing({.sparse_as_dense = true}, {}, "sparse_as_dense true");
  differing({.sparse_parameters = {pair.a}}, {}, "sparse");
  differing({.find_nonfinite = true}, {}, "find_nonfinite true");
  differing({.local_parameters = {pair.a}}, {}, "b: f64 [3]");
  differing({.op = ReduceOp::Sum}, {.op = ReduceOp::Max}, "op sum");
  differing({.backward_passes_per_step = 2}, {}, "backward_passes_per_step 2");
  differing({.name = "ours"}, {.name = "mine"}, "rank 1 has \"name \"mine\"");
}

TEST_CASE("the finder names the parameters and the ranks that are not finite", "[n2][n3]") {
  const bool grouped = GENERATE(false, true);
  Pair pair;
  DistributedOptimizer optimizer(pair.sgd, pair.names,
                                 {.groups = grouped ? 1 : 0, .find_nonfinite = true});
  const int last = ronde::size() - 1;
  const bool is_last = ronde::rank() == last;
  pair.backward(ronde::rank() == 0 ? kInfinity : 1.0, is_last ? kNan : 1.0);
  check_refused(
      [&] { optimizer.step(); },
      {"rank 0:\n    \"a\" has 0 NaN and 2 infinite of 2 elements",
       "rank " + std::to_string(last) + ":\n    \"b\" has 3 NaN and 0 infinite of 3 elements"});
  CHECK(torch::equal(pair.a, full({2}, 1)));
  check_refused([&] { optimizer.step(); }, {"zero_grad()"});
  optimizer.zero_grad();
  pair.backward(ronde::rank(), 1.0);
  optimizer.step();
  CHECK(near(pair.a, full({2}, 1.0 - mean_rank()), 1e-14));
}

TEST_CASE("the finder looks into sparse and local gradients, too", "[n2]") {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true));
  const at::Tensor own = at::ones({2}).requires_grad_();
  auto optimizer = wrapped_sgd({{"embedding", embedding->weight}, {"own", own}},
                               {.local_parameters = {own}, .find_nonfinite = true});
  const double factor = ronde::rank() == 1 ? kNan : 1.0;
  (embedding->forward(at::zeros({1}, at::kLong)).sum() + own.sum() * factor).backward();
  const std::string text =
      check_refused([&] { optimizer.step(); }, {"rank 1:\n    \"own\" has 2 NaN"});
  CHECK_FALSE(contains(text, "embedding"));
  optimizer.zero_grad();
  (embedding->forward(at::zeros({1}, at::kLong)).sum() * factor + own.sum()).backward();
  check_refused([&] { optimizer.step(); }, {"rank 1:\n    \"embedding\" has 2 NaN"});
}

}  // namespace
}  // namespace ronde_test::bad_input_test
