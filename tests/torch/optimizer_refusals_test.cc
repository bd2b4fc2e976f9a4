// SPDX-License-Identifier: Apache-2.0
// What DistributedOptimizer refuses, notices, and does after a failure.
#include <chrono>

#include "support.h"
#include "toy.h"

using namespace ronde_test;
using ronde::DistributedOptimizer;

TEST_CASE("what a DistributedOptimizer cannot wrap is refused on all ranks", "[n2]") {
  use_ronde();
  Toy toy;
  const auto refused = [](torch::optim::Optimizer& inner,
                          const torch::OrderedDict<std::string, at::Tensor>& names,
                          const ronde::DistributedOptimizerOptions& options = {}) {
    return usage_error([&] { DistributedOptimizer optimizer(inner, names, options); });
  };
  torch::optim::LBFGS lbfgs({toy.p}, 1.0);
  CHECK(contains(refused(lbfgs, toy.names, {.op = ronde::ReduceOp::Max}), "LBFGS"));
  CHECK(contains(refused(lbfgs, toy.names, {.local_parameters = {toy.p}}), "LBFGS"));

  torch::OrderedDict<std::string, at::Tensor> other;
  other.insert("other", at::ones({4}));
  const std::string missing = refused(toy.sgd, other);
  CAPTURE(missing);
  CHECK(contains(missing, "parameter 0 of group 0 (f64 [4] on cpu)"));

  torch::optim::SGD twice({toy.p, toy.p}, 1.0);
  CHECK(contains(refused(twice, toy.names), "twice"));

  torch::OrderedDict<std::string, at::Tensor> complex;
  complex.insert("z", at::ones({2}, at::kComplexDouble).requires_grad_());
  torch::optim::SGD of_complex({complex["z"]}, 1.0);
  CHECK(contains(refused(of_complex, complex), "complex"));

  CHECK(contains(refused(toy.sgd, toy.names, {.backward_passes_per_step = 0}), "at least 1"));
  CHECK(contains(refused(toy.sgd, toy.names, {.prescale = 0.0}), "prescale"));
}

TEST_CASE("optimisers that differ between ranks are refused on all of them", "[n2]") {
  use_ronde();
  Toy toy;
  const auto refused = [&](const ronde::DistributedOptimizerOptions& options) {
    return usage_error([&] { DistributedOptimizer optimizer(toy.sgd, toy.names, options); });
  };
  CHECK(contains(refused({.backward_passes_per_step = ronde::rank() + 1}),
                 "backward_passes_per_step 2"));
  // A problem of one rank alone is told on both.
  CHECK(contains(refused({.backward_passes_per_step = ronde::rank()}), "rank 0: "));
  if (ronde::rank() == 1) toy.p.requires_grad_(false);
  CHECK(contains(refused({}), "frozen"));
  toy.p.requires_grad_();
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  toy.backward(ronde::rank());
  optimizer.step();
}

TEST_CASE("parameters added to the inner optimiser afterwards are noticed", "[n2]") {
  use_ronde();
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  toy.sgd.add_param_group(torch::optim::OptimizerParamGroup({at::ones({2}).requires_grad_()}));
  CHECK(contains(usage_error([&] { optimizer.step(); }), "had 1"));
}

TEST_CASE("parameters of the module that the optimiser does not have are left alone", "[n2]") {
  use_ronde();
  Toy toy;
  const at::Tensor other = at::ones({4}, at::kDouble).requires_grad_();
  toy.names.insert("other", other);
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  ((toy.p + other) * static_cast<double>(ronde::rank())).sum().backward();
  optimizer.step();
  CHECK(near(other.grad(), at::full({4}, static_cast<double>(ronde::rank()), at::kDouble), 0));
  toy.check_gradient(mean_rank());
}

TEST_CASE("stepping without any backward leaves the parameters alone", "[n2]") {
  use_ronde();
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  optimizer.step();
  CHECK_FALSE(toy.p.grad().defined());
  CHECK(torch::equal(toy.p, at::ones({4}, at::kDouble)));
}

TEST_CASE("a reduction that fails leaves nothing pending, and zero_grad starts anew", "[n2]") {
  use_ronde();
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names, {.timeout = std::chrono::seconds(3)});
  const auto fail = [&] {
    toy.backward(1.0);
    const std::string text = usage_error([&] { optimizer.step(); });
    CAPTURE(text);
    CHECK(contains(text, "/p"));
    CHECK(contains(usage_error([&] { optimizer.step(); }), "zero_grad()"));
    CHECK(torch::equal(toy.p, at::ones({4}, at::kDouble)));
  };
  // The others wait in the barrier until rank 0 has given up; their parts then fail the same way.
  if (ronde::rank() == 0) fail();
  ronde::barrier();
  if (ronde::rank() != 0) fail();
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    toy.backward(ronde::rank());
    optimizer.step();
  }
  CHECK(near(toy.p, at::full({4}, 1.0 - 2 * mean_rank(), at::kDouble), 1e-14));
}

// One rank: those of a dead group leave without MPI_Finalize, and the first that does so may have
// the others killed by the launcher.
TEST_CASE("in a dead group backward and step throw its error, and nothing is pending", "[n1]") {
  use_ronde();
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  toy.backward(1.0);
  optimizer.step();
  const at::Tensor before = toy.p.detach().clone();
  ronde::abort("the disk is full");
  const auto until_dead = [] {
    while (true) ronde::barrier();
  };
  CHECK_THROWS_AS(until_dead(), ronde::GroupError);
  for (int attempt = 0; attempt < 2; ++attempt) {
    optimizer.zero_grad();
    try {
      toy.backward(1.0);
      FAIL("backward submitted to a dead group");
    } catch (const ronde::GroupError& error) {
      CHECK(error.failed_rank() == 0);
      CHECK(contains(error.what(), "the disk is full"));
    }
    CHECK_THROWS_AS(optimizer.step(), ronde::GroupError);
    CHECK(torch::equal(toy.p, before));
  }
}
