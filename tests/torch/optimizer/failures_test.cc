// SPDX-License-Identifier: Apache-2.0
// What one rank cannot do, and what comes late: every rank learns of it, and the next step is
// whole.
#include <chrono>

#include "failing.h"
#include "support.h"
#include "torch_ext/src/gradient_reducer.h"
#include "toy.h"

using namespace ronde_test;
using ronde::DistributedOptimizer;

namespace {

constexpr auto kSoon = std::chrono::milliseconds(400);
constexpr auto kForEver = std::chrono::milliseconds(0);

/// An optimiser is made, and steps in the end, however slow the machine is.
void set_timeout(DistributedOptimizer& optimizer, std::chrono::nanoseconds timeout) {
  ronde::detail::reducer_of(optimizer).set_timeout(timeout);
}

}  // namespace

TEST_CASE("a compressor that throws on rank 1 alone fails the step on all ranks", "[n2][n3]") {
  use_ronde();
  using Fails = Fragile::Fails;
  for (const int groups : {0, 1, 2}) {
    const auto fragile = std::make_shared<Fragile>();
    Three three;
    DistributedOptimizer optimizer(*three.sgd, three.names,
                                   {.groups = groups, .compression = fragile});
    check_next_steps(three, optimizer);
    for (const Fails when : {Fails::First, Fails::Between, Fails::Last}) {
      for (const std::string name : {"a", "b", "c"}) {
        CAPTURE(groups, static_cast<int>(when), name);
        fragile->fail(when, name);
        optimizer.zero_grad();
        three.backward(100.0 + ronde::rank());
        const std::string text = thrown_text([&] { optimizer.step(); });
        CAPTURE(text);
        CHECK(contains(text, "no room for a mask"));
        CHECK(contains(text, "rank 1: ") == (ronde::rank() != 1));
        fragile->fail(Fails::Never, "");
        check_next_steps(three, optimizer);
      }
    }
  }
}

TEST_CASE("a layout that rank 1 alone has fails the step on all ranks", "[n2][n3]") {
  use_ronde();
  for (const int groups : {0, 1}) {
    Three three;
    const at::Tensor matrix = at::eye(3, at::kDouble).requires_grad_();
    three.names.insert("matrix", matrix);
    torch::optim::SGD sgd(three.names.values(), 1.0);
    DistributedOptimizer optimizer(sgd, three.names, {.groups = groups});
    for (const bool is_sparse : {false, true}) {
      CAPTURE(groups, is_sparse);
      optimizer.zero_grad();
      {
        const auto guard = optimizer.no_sync();
        three.names["a"].sum().backward();
        matrix.sum().backward();
      }
      if (ronde::rank() == 1) {
        // Two sparse dimensions, or compressed rows.
        const at::Tensor odd = at::eye(3, at::kDouble);
        matrix.mutable_grad() = is_sparse ? odd.to_sparse() : odd.to_sparse_csr();
      }
      const std::string text = usage_error([&] { optimizer.step(); });
      CAPTURE(text);
      CHECK(contains(text, is_sparse ? "2 sparse dimensions" : "SparseCsr"));
      CHECK(contains(text, "\"matrix\""));
      matrix.mutable_grad().reset();
      optimizer.zero_grad();
      three.backward(ronde::rank());
      optimizer.synchronize();
      CHECK(near(three.names["a"].grad(), at::full({4}, mean_rank() * 1.0, at::kDouble), 1e-14));
      optimizer.step();
    }
  }
}

TEST_CASE("parameters that were added and not told of leave nothing in flight", "[n2]") {
  use_ronde();
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  const at::Tensor q = at::ones({4}, at::kDouble).requires_grad_();
  toy.names.insert("q", q);
  toy.sgd.add_param_group(
      torch::optim::OptimizerParamGroup({q}, std::make_unique<torch::optim::SGDOptions>(1.0)));
  optimizer.zero_grad();
  toy.backward(ronde::rank());
  CHECK(contains(usage_error([&] { optimizer.step(); }), "add_parameters()"));
  CHECK(torch::equal(toy.p, at::ones({4}, at::kDouble)));
  // A reduction of the old ones alone is nothing to step with.
  CHECK(contains(usage_error([&] { optimizer.step(); }), "zero_grad()"));
  optimizer.add_parameters(toy.names);
  optimizer.zero_grad();
  ((toy.p + q).sum() * static_cast<double>(ronde::rank())).backward();
  optimizer.step();
  CHECK(near(flatten({toy.p, q}), at::full({8}, 1.0 - mean_rank(), at::kDouble), 1e-14));
}

TEST_CASE("flags are waited for after a failure, so that a retry can send them again", "[n2]") {
  use_ronde();
  Toy toy;
  Toy other;
  DistributedOptimizer optimizer(toy.sgd, toy.names, {.find_nonfinite = true});
  DistributedOptimizer second(other.sgd, other.names);
  set_timeout(optimizer, kSoon);
  set_timeout(second, kSoon);
  const auto fail_twice = [&] {
    for (int attempt = 0; attempt < 2; ++attempt) {
      optimizer.zero_grad();
      second.zero_grad();
      // Its time is over when the flag's begins.
      toy.backward(1.0);
      other.backward(1.0);
      CHECK(contains(usage_error([&] { second.step(); }), "timed out"));
      CHECK(contains(usage_error([&] { optimizer.step(); }), "timed out"));
    }
  };
  if (ronde::rank() == 0) fail_twice();
  ronde::barrier();
  if (ronde::rank() != 0) fail_twice();
  ronde::barrier();
  set_timeout(optimizer, kForEver);
  optimizer.zero_grad();
  toy.backward(ronde::rank());
  optimizer.step();
  CHECK(near(toy.p, at::full({4}, 1.0 - mean_rank(), at::kDouble), 1e-14));
}

TEST_CASE("a timeout between the rounds of a sparse gradient leaves nothing of the first", "[n2]") {
  use_ronde();
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(6, 2).sparse(true));
  embedding->to(at::kDouble);
  torch::optim::SGD sgd(embedding->parameters(), 1.0);
  DistributedOptimizer optimizer(sgd, embedding->named_parameters());
  const auto backward = [&](std::int64_t word) {
    optimizer.zero_grad();
    embedding->forward(at::full({1}, word, at::kLong)).sum().backward();
  };
  backward(1);
  set_timeout(optimizer, kSoon);
  ronde::barrier();
  const auto fail = [&] {
    CHECK(contains(usage_error([&] { optimizer.step(); }), "/failed' timed out on rank 0"));
  };
  // Rank 1 does not say that it has the indices until rank 0 has given up.
  if (ronde::rank() == 0) fail();
  ronde::barrier();
  if (ronde::rank() != 0) fail();
  ronde::barrier();
  set_timeout(optimizer, kForEver);
  backward(2 + ronde::rank());
  optimizer.synchronize();
  at::Tensor expected = at::zeros({6, 2}, at::kDouble);
  expected.slice(0, 2, 4).fill_(0.5);
  CHECK(torch::equal(embedding->weight.grad().to_dense(), expected));
}

TEST_CASE("optimisers of sets or names that differ between ranks give up in time", "[n3]") {
  use_ronde();
  Toy toy;
  const auto refused = [&](const ronde::DistributedOptimizerOptions& options) {
    return usage_error([&] { DistributedOptimizer optimizer(toy.sgd, toy.names, options); });
  };
  const ronde::ProcessSet ends = ronde::add_process_set({0, 2});
  const std::string of_sets =
      refused({.process_set = ronde::rank() == 0 ? ends : ronde::ProcessSet(), .timeout = kSoon});
  CAPTURE(of_sets);
  CHECK(contains(of_sets, "timed out on rank"));
  ronde::barrier();
  const std::string of_names =
      refused({.name = ronde::rank() == 0 ? "mine" : "ours", .timeout = kSoon});
  CAPTURE(of_names);
  CHECK(contains(of_names, "timed out on rank"));
  ronde::barrier();
  DistributedOptimizer optimizer(toy.sgd, toy.names, {.name = "all", .timeout = kForEver});
  toy.backward(ronde::rank());
  optimizer.synchronize();
  toy.check_gradient(mean_rank());
}

TEST_CASE("inner optimisers of other types are refused on all ranks", "[n2]") {
  use_ronde();
  Toy toy;
  torch::optim::LBFGS lbfgs({toy.p});
  torch::optim::Adam adam({toy.p});
  torch::optim::Optimizer& inner =
      ronde::rank() == 0 ? static_cast<torch::optim::Optimizer&>(lbfgs) : adam;
  const std::string text = usage_error([&] { DistributedOptimizer optimizer(inner, toy.names); });
  CAPTURE(text);
  CHECK(contains(text, "torch::optim::LBFGS"));
  CHECK(contains(text, "torch::optim::Adam"));
}
