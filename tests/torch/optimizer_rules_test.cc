// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "tests/torch/optimizer/failing.h"

namespace ronde_test::optimizer_rules_test {

TEST_CASE("synchronize lets the caller clip, and step does not reduce again") {
  WrappedToy toy;
  toy.backward(ronde::rank() + 3.0);
  toy.optimizer.synchronize();
  toy.check_gradients(mean_rank() + 3.0);
  // Rank-dependent on purpose: another reduction would mix it.
  torch::nn::utils::clip_grad_norm_({toy.p}, 1.0);
  toy.p.mutable_grad().mul_(ronde::rank() + 1.0);
  const at::Tensor clipped = toy.p.grad().clone();
  toy.optimizer.synchronize();
  toy.optimizer.step();
  CHECK(torch::equal(toy.p.grad(), clipped));
  CHECK(near(toy.p, 1.0 - clipped, 1e-14));
}

TEST_CASE("no_sync adds up on each rank, and the next backward, or step, reduces the sum") {
  WrappedToy toy;
  {
    const auto guard = toy.optimizer.no_sync();
    toy.backward(ronde::rank() + 1.0);
    toy.backward(ronde::rank() + 1.0);
    toy.check_gradients(2 * (ronde::rank() + 1.0));
  }
  toy.backward(1.0);
  toy.optimizer.synchronize();
  toy.check_gradients(2 * (mean_rank() + 1.0) + 1.0);
  toy.optimizer.zero_grad();
  {
    auto outer = toy.optimizer.no_sync();
    const auto inner = toy.optimizer.no_sync();
    const auto moved = std::move(outer);
    toy.backward(ronde::rank());
    check_refused([&] { toy.optimizer.step(); }, {"no_sync()"});
  }
  toy.optimizer.step();
  toy.check_values(1.0 - mean_rank());
}

TEST_CASE("a closure runs with gradients on, is reduced, and its loss returned") {
  WrappedToy toy;
  const torch::NoGradGuard no_grad;
  int calls = 0;
  const at::Tensor loss = toy.optimizer.step([&] {
    ++calls;
    toy.optimizer.zero_grad();
    at::Tensor value = toy.loss(ronde::rank() + 1.0);
    value.backward();
    return value;
  });
  CHECK(calls == 1);
  CHECK(loss.item<double>() == 4.0 * (ronde::rank() + 1.0));
  toy.check_values(1.0 - (mean_rank() + 1.0));
}

TEST_CASE("calls out of order are refused with what to do, and training goes on", "[n2]") {
  WrappedToy toy({.name = "net"});
  toy.backward(ronde::rank());
  check_refused([&] { toy.backward(100.0); },
                {"rank " + std::to_string(ronde::rank()), "DistributedOptimizer(\"net\")",
                 "parameter \"p\"", "backward_passes_per_step",
                 "Call step() of the DistributedOptimizer, not of the inner optimizer"});
  check_refused([&] { toy.optimizer.zero_grad(); }, {"synchronize()"});
  toy.optimizer.synchronize();
  // The refused pass added nothing.
  toy.check_gradients(mean_rank());
  check_refused([&] { toy.backward(1.0); }, {"between synchronize() and step()"});
  toy.optimizer.zero_grad();
  CHECK_FALSE(toy.p.grad().defined());
  train(toy, 1, ronde::rank());
  toy.check_values(1.0 - mean_rank());
  toy.optimizer.zero_grad();
  toy.backward(ronde::rank());
  toy.sgd.zero_grad();
  check_refused([&] { toy.optimizer.step(); }, {"cleared or replaced"});
  // Nothing is pending, and the optimizer wants to be told that the gradients are gone.
  check_refused([&] { toy.optimizer.step(); }, {"zero_grad()"});
  check_refused([&] { toy.backward(1.0); }, {"zero_grad()"});
  train(toy, 1, ronde::rank());
  toy.check_values(1.0 - 2 * mean_rank());
  toy.add("later");
  check_refused([&] { toy.optimizer.step(); }, {"had 1"});
}

TEST_CASE("a gradient in flight can be neither read nor written, in groups or not", "[n2]") {
  for (const DistributedOptimizerOptions& options :
       {DistributedOptimizerOptions{.name = "net"}, {.name = "net", .groups = 1}}) {
    WrappedToy toy(options);
    const std::vector<std::string> parts = {"rank " + std::to_string(ronde::rank()), "\"net\"",
                                            "parameter \"p\"", "synchronize()",
                                            "step() of the DistributedOptimizer"};
    const auto check_told = [&](const std::function<void()>& function) {
      CHECK_THROWS_AS(function(), c10::Error);
      check_contains(thrown_text(function), parts);
    };
    toy.backward(ronde::rank());
    check_told([&] { torch::nn::utils::clip_grad_norm_({toy.p}, 1.0); });
    check_told([&] { torch::nn::utils::clip_grad_value_({toy.p}, 0.25); });
    check_told([&] { toy.p.mutable_grad().mul_(2.0); });
    check_told([&] { static_cast<void>(toy.p.grad().norm()); });
    check_told([&] { toy.sgd.step(); });
    check_told([&] { toy.sgd.zero_grad(/*set_to_none=*/false); });
    // Nothing has come of it.
    toy.optimizer.step();
    toy.check_gradients(mean_rank());
    toy.check_values(1.0 - mean_rank());
  }
}

TEST_CASE("a gradient written in flight through a handle kept from before fails the step", "[n2]") {
  WrappedToy toy;
  train(toy);
  const at::Tensor kept = toy.p.grad();
  toy.optimizer.zero_grad(/*set_to_none=*/false);
  toy.backward(1.0);
  kept.mul_(ronde::rank() + 2.0);
  check_refused([&] { toy.optimizer.step(); }, {"was written", "synchronize()"});
  toy.check_values(0.0);
  train(toy);
  toy.check_values(-1.0);
}

TEST_CASE("create_graph and a second backward through the gradient are two passes", "[n2]") {
  WrappedToy toy({.backward_passes_per_step = 2});
  const double c = ronde::rank() + 1.0;
  (toy.p * toy.p * c).sum().backward({}, std::nullopt, /*create_graph=*/true);
  // grad = 2cp; d/dp sum(grad^2) = 8 c^2 p, which adds to it.
  toy.p.grad().pow(2).sum().backward();
  toy.optimizer.synchronize();
  // The average of c = 1 and c = 2.
  toy.check_gradients(((2 + 8) + (4 + 32)) / 2.0);
}

TEST_CASE("gradients leave while backward still runs", "[n2]") {
  Toy toy(1.0, {"early", "late"});
  const at::Tensor early = toy.p, late = toy.names["late"];
  DistributedOptimizer optimizer(toy.sgd, toy.names, {.name = "overlap", .op = ReduceOp::Sum});
  const at::Tensor hidden = early * 2;
  const std::uint64_t executed_before = counted("execution", "tensors");
  bool arrived = false;
  // Runs in the middle of backward: after the gradient of `late`, before that of `early`. It holds
  // backward up until the gradient of `late` is being reduced, for which both ranks are needed.
  hidden.register_hook([&](const at::Tensor& gradient) {
    REQUIRE(late.grad().defined());
    CHECK_FALSE(early.grad().defined());
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!arrived && std::chrono::steady_clock::now() < deadline) {
      arrived = counted("execution", "tensors") > executed_before;
      std::this_thread::yield();
    }
    return gradient;
  });
  (hidden * late).sum().backward();
  CHECK(arrived);
  optimizer.step();
}

TEST_CASE("what a DistributedOptimizer cannot wrap is refused on all ranks", "[n2]") {
  Toy toy;
  torch::optim::LBFGS lbfgs({toy.p}, 1.0);
  torch::optim::SGD twice({toy.p, toy.p}, 1.0);
  const auto check = [](torch::optim::Optimizer& inner, const Names& names,
                        const DistributedOptimizerOptions& options, const std::string& part) {
    check_refused([&] { DistributedOptimizer optimizer(inner, names, options); }, {part});
  };
  check(lbfgs, toy.names, {.op = ReduceOp::Max}, "LBFGS");
  check(lbfgs, toy.names, {.local_parameters = {toy.p}}, "LBFGS");
  check(toy.sgd, {{"other", at::ones({4})}}, {}, "parameter 0 of group 0 (f64 [4] on cpu)");
  check(twice, toy.names, {}, "twice");
  const at::Tensor z = at::ones({2}, at::kComplexDouble).requires_grad_();
  const at::Tensor small = at::ones({2}).to(at::kFloat8_e5m2).requires_grad_();
  torch::optim::SGD other({z, small}, 1.0);
  const Names others = {{"z", z}, {"small", small}};
  check(other, others, {.op = ReduceOp::Max}, "\"z\" (c128 [2] on cpu)");
  check(other, others, {}, "\"small\" (Float8_e5m2 [2] on cpu)");
  const DistributedOptimizer local(other, others, {.local_parameters = {small}});
  const Names tied = {{"encoder", toy.p}, {"decoder", toy.p}};
  check(twice, tied, {}, "\"encoder\" and \"decoder\"");
  const DistributedOptimizer optimizer(toy.sgd, tied);  // which has the tensor once
}

TEST_CASE("optimizers that differ between ranks are refused on all of them", "[n2]") {
  Toy toy;
  const auto check = [&](torch::optim::Optimizer& inner, const DistributedOptimizerOptions& options,
                         const std::vector<std::string>& parts) {
    check_refused([&] { DistributedOptimizer optimizer(inner, toy.names, options); }, parts);
  };
  // A problem of one rank alone is told on both.
  check(toy.sgd, {.backward_passes_per_step = ronde::rank()}, {"rank 0: "});
  torch::optim::LBFGS lbfgs({toy.p});
  torch::optim::Adam adam({toy.p});
  torch::optim::Optimizer* const mine[] = {&lbfgs, &adam};
  check(*mine[ronde::rank()], {}, {"torch::optim::LBFGS", "torch::optim::Adam"});
  if (ronde::rank() == 1) toy.p.requires_grad_(false);
  check(toy.sgd, {}, {"frozen"});
  toy.p.requires_grad_();
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  train(toy, optimizer, 1);
}

TEST_CASE("what no backward reached, or the optimizer does not have, is left alone", "[n2]") {
  Toy toy;
  const Toy other;
  Names names = toy.names;
  names.insert("other", other.p);
  DistributedOptimizer optimizer(toy.sgd, names);
  optimizer.step();
  CHECK_FALSE(toy.p.grad().defined());
  toy.check_values(1.0);
  (toy.loss(ronde::rank()) + other.loss(ronde::rank())).backward();
  optimizer.step();
  other.check_gradients(ronde::rank());
  toy.check_gradients(mean_rank());
}

// One rank: those of a dead group leave without MPI_Finalize, and the first that does so may have
// the others killed by the launcher.
TEST_CASE("in a dead group backward and step throw its error; nothing is pending", "[n1][own]") {
  use_ronde();
  WrappedToy toy;
  train(toy);
  const at::Tensor before = toy.p.detach().clone();
  ronde::abort("the disk is full");
  const auto until_dead = [] {
    while (true) ronde::barrier();
  };
  CHECK_THROWS_AS(until_dead(), ronde::GroupError);
  for (int attempt = 0; attempt < 2; ++attempt) {
    toy.optimizer.zero_grad();
    try {
      toy.backward(1.0);
      FAIL("backward submitted to a dead group");
    } catch (const ronde::GroupError& error) {
      CHECK(error.failed_rank() == 0);
      CHECK(contains(error.what(), "the disk is full"));
    }
    CHECK_THROWS_AS(toy.optimizer.step(), ronde::GroupError);
    CHECK(torch::equal(toy.p, before));
  }
}

}  // namespace ronde_test::optimizer_rules_test
