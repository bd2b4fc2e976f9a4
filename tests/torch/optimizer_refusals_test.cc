// SPDX-License-Identifier: Apache-2.0
// What DistributedOptimizer refuses, notices, and does after a failure.
#include <chrono>

#include "support.h"
#include "toy.h"

namespace ronde_test::optimizer_refusals_test {

using ronde::DistributedOptimizer;

TEST_CASE("what a DistributedOptimizer cannot wrap is refused on all ranks", "[n2]") {
  Toy toy;
  torch::optim::LBFGS lbfgs({toy.p}, 1.0);
  torch::optim::SGD twice({toy.p, toy.p}, 1.0);
  const at::Tensor z = at::ones({2}, at::kComplexDouble).requires_grad_();
  torch::optim::SGD of_complex({z}, 1.0);
  const auto check = [](torch::optim::Optimizer& inner, const Names& names,
                        const ronde::DistributedOptimizerOptions& options,
                        const std::string& part) {
    check_refused([&] { DistributedOptimizer optimizer(inner, names, options); }, {part});
  };
  check(lbfgs, toy.names, {.op = ronde::ReduceOp::Max}, "LBFGS");
  check(lbfgs, toy.names, {.local_parameters = {toy.p}}, "LBFGS");
  check(toy.sgd, {{"other", at::ones({4})}}, {}, "parameter 0 of group 0 (f64 [4] on cpu)");
  check(twice, toy.names, {}, "twice");
  check(of_complex, {{"z", z}}, {}, "complex");
  check(toy.sgd, toy.names, {.backward_passes_per_step = 0}, "at least 1");
  check(toy.sgd, toy.names, {.prescale = 0.0}, "prescale");
}

TEST_CASE("optimisers that differ between ranks are refused on all of them", "[n2]") {
  Toy toy;
  const auto check = [&](torch::optim::Optimizer& inner,
                         const ronde::DistributedOptimizerOptions& options,
                         const std::vector<std::string>& parts) {
    check_refused([&] { DistributedOptimizer optimizer(inner, toy.names, options); }, parts);
  };
  check(toy.sgd, {.backward_passes_per_step = ronde::rank() + 1}, {"backward_passes_per_step 2"});
  // A problem of one rank alone is told on both.
  check(toy.sgd, {.backward_passes_per_step = ronde::rank()}, {"rank 0: "});
  torch::optim::LBFGS lbfgs({toy.p});
  torch::optim::Adam adam({toy.p});
  if (ronde::rank() == 0) {
    check(lbfgs, {}, {"torch::optim::LBFGS", "torch::optim::Adam"});
  } else {
    check(adam, {}, {"torch::optim::LBFGS", "torch::optim::Adam"});
  }
  if (ronde::rank() == 1) toy.p.requires_grad_(false);
  check(toy.sgd, {}, {"frozen"});
  toy.p.requires_grad_();
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  toy.backward(ronde::rank());
  optimizer.step();
}

TEST_CASE("parameters added to the inner optimiser afterwards are noticed", "[n2]") {
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  toy.add("later");
  check_refused([&] { optimizer.step(); }, {"had 1"});
}

TEST_CASE("parameters of the module that the optimiser does not have are left alone", "[n2]") {
  Toy toy;
  const Toy other;
  Names names = toy.names;
  names.insert("other", other.p);
  DistributedOptimizer optimizer(toy.sgd, names);
  (toy.loss(ronde::rank()) + other.loss(ronde::rank())).backward();
  optimizer.step();
  other.check_gradients(ronde::rank());
  toy.check_gradients(mean_rank());
}

TEST_CASE("stepping without any backward leaves the parameters alone", "[n2]") {
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  optimizer.step();
  CHECK_FALSE(toy.p.grad().defined());
  CHECK(torch::equal(toy.p, full({4}, 1)));
}

TEST_CASE("a reduction that fails leaves nothing pending, and zero_grad starts anew", "[n2]") {
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names, {.timeout = std::chrono::seconds(3)});
  const auto fail = [&] {
    toy.backward(1.0);
    check_refused([&] { optimizer.step(); }, {"/p"});
    check_refused([&] { optimizer.step(); }, {"zero_grad()"});
    CHECK(torch::equal(toy.p, full({4}, 1)));
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
  CHECK(near(toy.p, full({4}, 1.0 - 2 * mean_rank()), 1e-14));
}

// One rank: those of a dead group leave without MPI_Finalize, and the first that does so may have
// the others killed by the launcher.
TEST_CASE("in a dead group backward and step throw its error, and nothing is pending",
          "[n1][own]") {
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

}  // namespace ronde_test::optimizer_refusals_test
