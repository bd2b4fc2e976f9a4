// SPDX-License-Identifier: Apache-2.0
// Options that make no sense or differ between ranks, and gradients that are no numbers.
#include <limits>

#include "support.h"
#include "toy.h"

using namespace ronde_test;
using ronde::DistributedOptimizer;
using ronde::DistributedOptimizerOptions;

namespace {

using Names = torch::OrderedDict<std::string, at::Tensor>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Two parameters, whose gradients are what the factors say.
struct Pair {
  Pair() : sgd({a, b}, 1.0) {
    names.insert("a", a);
    names.insert("b", b);
  }
  void backward(double of_a, double of_b) { (a.sum() * of_a + b.sum() * of_b).backward(); }
  at::Tensor a = at::ones({2}, at::kDouble).requires_grad_();
  at::Tensor b = at::ones({3}, at::kDouble).requires_grad_();
  torch::optim::SGD sgd;
  Names names;
};

std::string refused(Pair& pair, const DistributedOptimizerOptions& options) {
  return usage_error([&] { DistributedOptimizer optimizer(pair.sgd, pair.names, options); });
}

}  // namespace

TEST_CASE("options that make no sense are refused, with what to do", "[n1][n2]") {
  use_ronde();
  Pair pair;
  const at::Tensor other = at::ones({5});
  const std::vector<std::pair<DistributedOptimizerOptions, std::string>> cases = {
      {{.gradient_predivide_factor = 0.0}, "gradient_predivide_factor is 0"},
      {{.gradient_predivide_factor = -1.0}, "greater than zero"},
      {{.gradient_predivide_factor = kNan}, "finite"},
      {{.op = ronde::ReduceOp::Sum, .gradient_predivide_factor = 2.0}, "Use prescale"},
      {{.groups = -1}, "groups is -1"},
      {{.groups = {{pair.a, pair.b}, {pair.a}}}, "\"a\" is in them twice"},
      {{.groups = {{pair.a}}, .local_parameters = {pair.a}}, "does not travel"},
      {{.groups = {{other}}}, "groups has a tensor (f32 [5] on cpu)"},
      {{.local_parameters = {other}}, "local_parameters has a tensor"},
      {{.prescale = kInfinity}, "finite"}};
  for (const auto& [options, part] : cases) {
    const std::string text = refused(pair, options);
    CAPTURE(text);
    CHECK(contains(text, part));
    CHECK(contains(text, "rank 0: "));
  }
  // Nothing of them stays.
  DistributedOptimizer optimizer(pair.sgd, pair.names);
  pair.backward(1, 1);
  optimizer.step();
}

TEST_CASE("options that differ between ranks are refused on all of them", "[n2][n3]") {
  use_ronde();
  Pair pair;
  const bool is_first = ronde::rank() == 0;
  const auto differing = [&](const DistributedOptimizerOptions& mine,
                             const DistributedOptimizerOptions& others, const std::string& part) {
    const std::string text = refused(pair, is_first ? mine : others);
    CAPTURE(text);
    CHECK(contains(text, "the ranks differ"));
    CHECK(contains(text, part));
  };
  differing({.gradient_predivide_factor = 2.0}, {}, "gradient_predivide_factor 2");
  differing({.groups = 2}, {}, "in group 0");
  differing({.groups = {{pair.a}, {pair.b}}}, {.groups = {{pair.b}, {pair.a}}}, "in group 0");
  differing({.sparse_as_dense = true}, {}, "sparse_as_dense true");
  differing({.sparse_parameters = {pair.a}}, {}, "sparse");
  differing({.find_nonfinite = true}, {}, "find_nonfinite true");
  differing({.local_parameters = {pair.a}}, {}, "b: f64 [3]");
  differing({.op = ronde::ReduceOp::Sum}, {.op = ronde::ReduceOp::Max}, "op sum");
}

TEST_CASE("a rank outside the process set is refused at once", "[n3]") {
  use_ronde();
  Pair pair;
  const ronde::ProcessSet ends = ronde::add_process_set({0, 2});
  const ronde::ProcessSet starts = ronde::add_process_set({0, 1});
  if (ronde::rank() == 1) {
    CHECK(contains(refused(pair, {.process_set = ends}), "is not in process set"));
  }
  if (ronde::rank() == 2) {
    CHECK(contains(refused(pair, {.process_set = starts}), "is not in process set"));
  }
  ronde::barrier();
}

TEST_CASE("the finder names the parameters and the ranks that are not finite", "[n2][n3]") {
  use_ronde();
  for (const bool grouped : {false, true}) {
    Pair pair;
    DistributedOptimizer optimizer(pair.sgd, pair.names,
                                   {.groups = grouped ? 1 : 0, .find_nonfinite = true});
    const int last = ronde::size() - 1;
    const bool is_last = ronde::rank() == last;
    pair.backward(ronde::rank() == 0 ? kInfinity : 1.0, is_last ? kNan : 1.0);
    const std::string text = usage_error([&] { optimizer.step(); });
    CAPTURE(text);
    CHECK(contains(text, "rank 0:\n    \"a\" has 0 NaN and 2 infinite of 2 elements"));
    CHECK(contains(text, "rank " + std::to_string(last) +
                             ":\n    \"b\" has 3 NaN and 0 infinite of 3 elements"));
    CHECK(torch::equal(pair.a, at::ones({2}, at::kDouble)));
    CHECK(contains(usage_error([&] { optimizer.step(); }), "zero_grad()"));
    optimizer.zero_grad();
    pair.backward(ronde::rank(), 1.0);
    optimizer.step();
    CHECK(near(pair.a, at::full({2}, 1.0 - mean_rank(), at::kDouble), 1e-14));
  }
}

TEST_CASE("the finder looks into sparse and local gradients, too", "[n2]") {
  use_ronde();
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true));
  const at::Tensor own = at::ones({2}).requires_grad_();
  torch::optim::SGD sgd({embedding->weight, own}, 1.0);
  Names names;
  names.insert("embedding", embedding->weight);
  names.insert("own", own);
  DistributedOptimizer optimizer(sgd, names, {.local_parameters = {own}, .find_nonfinite = true});
  const double factor = ronde::rank() == 1 ? kNan : 1.0;
  (embedding->forward(at::zeros({1}, at::kLong)).sum() + own.sum() * factor).backward();
  std::string text = usage_error([&] { optimizer.step(); });
  CAPTURE(text);
  CHECK(contains(text, "rank 1:\n    \"own\" has 2 NaN"));
  CHECK_FALSE(contains(text, "embedding"));
  optimizer.zero_grad();
  (embedding->forward(at::zeros({1}, at::kLong)).sum() * factor + own.sum()).backward();
  text = usage_error([&] { optimizer.step(); });
  CHECK(contains(text, "rank 1:\n    \"embedding\" has 2 NaN"));
}

TEST_CASE("without the finder a NaN of one rank reaches all, with the same bits", "[n2][n3]") {
  use_ronde();
  for (const auto& compression : {std::shared_ptr<ronde::Compression>(), ronde::Compression::fp16(),
                                  ronde::Compression::bf16()}) {
    Pair pair;
    DistributedOptimizer optimizer(pair.sgd, pair.names, {.compression = compression});
    pair.backward(ronde::rank() == 1 ? kNan : 1.0, ronde::rank() == 0 ? kInfinity : 1.0);
    optimizer.step();
    CHECK(at::isnan(pair.a).all().item<bool>());
    CHECK(at::isinf(pair.b).all().item<bool>());
    CHECK(same_on_all_ranks(pair.a));
  }
}

TEST_CASE("a gradient of another layout is refused by name", "[n1]") {
  use_ronde();
  Pair pair;
  DistributedOptimizer optimizer(pair.sgd, pair.names);
  optimizer.zero_grad();
  // What no operation of backward makes, but a program may set.
  const at::Tensor matrix = at::eye(3).requires_grad_();
  Names names;
  names.insert("matrix", matrix);
  torch::optim::SGD sgd({matrix}, 1.0);
  DistributedOptimizer of_matrix(sgd, names);
  matrix.mutable_grad() = at::eye(3).to_sparse_csr();
  CHECK(contains(usage_error([&] { of_matrix.step(); }), "SparseCsr"));
}
