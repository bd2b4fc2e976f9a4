// SPDX-License-Identifier: Apache-2.0
// The order of calls that DistributedOptimizer allows, and what it says of others.
#include <chrono>
#include <stdexcept>
#include <thread>

#include "support.h"
#include "toy.h"

namespace ronde_test::optimizer_rules_test {

using ronde::DistributedOptimizer;

TEST_CASE("synchronize lets the caller clip, and step does not reduce again") {
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  toy.backward(ronde::rank() + 3.0);
  optimizer.synchronize();
  toy.check_gradients(mean_rank() + 3.0);
  // Rank-dependent on purpose: another reduction would mix it.
  torch::nn::utils::clip_grad_norm_({toy.p}, 1.0);
  toy.p.mutable_grad().mul_(ronde::rank() + 1.0);
  const at::Tensor clipped = toy.p.grad().clone();
  optimizer.synchronize();
  optimizer.step();
  CHECK(torch::equal(toy.p.grad(), clipped));
  CHECK(near(toy.p, 1.0 - clipped, 1e-14));
}

TEST_CASE("several backward passes add up before they are reduced once") {
  for (const bool average : {false, true}) {
    Toy toy;
    DistributedOptimizer optimizer(
        toy.sgd, toy.names,
        {.backward_passes_per_step = 3, .average_aggregated_gradients = average});
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      for (int pass = 0; pass < 3; ++pass) toy.backward(ronde::rank() + pass + 1.0);
      optimizer.synchronize();
      const double sum = 3 * mean_rank() + 6.0;
      toy.check_gradients(average ? sum / 3 : sum);
      optimizer.step();
    }
  }
}

TEST_CASE("a step after fewer passes than announced reduces what there is", "[n2]") {
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names, {.backward_passes_per_step = 3});
  toy.backward(ronde::rank());
  optimizer.synchronize();
  toy.check_gradients(mean_rank());
  optimizer.step();
  // The next step counts from one again.
  optimizer.zero_grad();
  for (int pass = 0; pass < 3; ++pass) toy.backward(ronde::rank());
  optimizer.synchronize();
  toy.check_gradients(3 * mean_rank());
}

TEST_CASE("no_sync adds up on each rank, and the next backward reduces the sum") {
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  {
    const auto guard = optimizer.no_sync();
    toy.backward(ronde::rank() + 1.0);
    toy.backward(ronde::rank() + 1.0);
    toy.check_gradients(2 * (ronde::rank() + 1.0));
  }
  toy.backward(1.0);
  optimizer.synchronize();
  toy.check_gradients(2 * (mean_rank() + 1.0) + 1.0);
}

TEST_CASE("what only no_sync passes reached is reduced by step", "[n2]") {
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  {
    auto outer = optimizer.no_sync();
    const auto inner = optimizer.no_sync();
    const auto moved = std::move(outer);
    toy.backward(ronde::rank());
    check_refused([&] { optimizer.step(); }, {"no_sync()"});
  }
  optimizer.step();
  toy.check_values(1.0 - mean_rank());
}

TEST_CASE("a closure runs with gradients on, is reduced, and its loss returned") {
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  const torch::NoGradGuard no_grad;
  int calls = 0;
  const at::Tensor loss = optimizer.step([&] {
    ++calls;
    optimizer.zero_grad();
    at::Tensor value = (toy.p * (ronde::rank() + 1.0)).sum();
    value.backward();
    return value;
  });
  CHECK(calls == 1);
  CHECK(loss.item<double>() == 4.0 * (ronde::rank() + 1.0));
  toy.check_values(1.0 - (mean_rank() + 1.0));
}

TEST_CASE("too many backward passes are refused by backward itself, and step still works", "[n2]") {
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names, {.name = "net"});
  toy.backward(ronde::rank());
  check_refused([&] { toy.backward(100.0); },
                {"rank " + std::to_string(ronde::rank()), "DistributedOptimizer(\"net\")",
                 "parameter \"p\"", "backward_passes_per_step"});
  optimizer.synchronize();
  // The refused pass added nothing.
  toy.check_gradients(mean_rank());
  optimizer.step();
  optimizer.zero_grad();
  toy.backward(1.0);
  optimizer.step();
}

TEST_CASE("backward between synchronize and step is refused, zero_grad starts anew", "[n2]") {
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  toy.backward(1.0);
  optimizer.synchronize();
  check_refused([&] { toy.backward(1.0); }, {"between synchronize() and step()"});
  optimizer.zero_grad();
  toy.backward(ronde::rank());
  optimizer.step();
  toy.check_values(1.0 - mean_rank());
}

TEST_CASE("zero_grad while gradients travel is refused", "[n2]") {
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  toy.backward(ronde::rank());
  check_refused([&] { optimizer.zero_grad(); }, {"synchronize()"});
  optimizer.step();
  toy.check_gradients(mean_rank());
  optimizer.zero_grad();
  CHECK_FALSE(toy.p.grad().defined());
}

TEST_CASE("a gradient that is cleared behind the optimiser's back is noticed", "[n2]") {
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  toy.backward(1.0);
  toy.sgd.zero_grad();
  check_refused([&] { optimizer.step(); }, {"cleared or replaced"});
  // Nothing is pending, and the optimiser wants to be told that the gradients are gone.
  check_refused([&] { optimizer.step(); }, {"zero_grad()"});
  check_refused([&] { toy.backward(1.0); }, {"zero_grad()"});
  optimizer.zero_grad();
  toy.backward(ronde::rank());
  optimizer.step();
  toy.check_values(1.0 - mean_rank());
}

TEST_CASE("create_graph and a second backward through the gradient are two passes", "[n2]") {
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names, {.backward_passes_per_step = 2});
  const double c = ronde::rank() + 1.0;
  (toy.p * toy.p * c).sum().backward({}, std::nullopt, /*create_graph=*/true);
  // grad = 2cp; d/dp sum(grad^2) = 8 c^2 p, which adds to it.
  toy.p.grad().pow(2).sum().backward();
  optimizer.synchronize();
  // Of c = 1 and c = 2.
  CHECK(near(toy.p.grad(), full({4}, ((2 + 8) + (4 + 32)) / 2.0), 1e-12));
}

TEST_CASE("two optimisers train side by side, as a GAN does") {
  Toy generator(0.5);
  Toy discriminator(0.25);
  DistributedOptimizer g(generator.sgd, generator.names);
  DistributedOptimizer d(discriminator.sgd, discriminator.names, {.backward_passes_per_step = 2});
  const double own = ronde::rank() + 1.0;
  for (int step = 0; step < 3; ++step) {
    d.zero_grad();
    discriminator.backward(own);                                // real
    (discriminator.p * generator.p.detach()).sum().backward();  // fake
    d.step();
    g.zero_grad();
    {
      const auto guard = d.no_sync();
      (generator.p * discriminator.p).sum().backward();
    }
    g.step();
  }
  double p = 1.0;
  double q = 1.0;
  for (int step = 0; step < 3; ++step) {
    q -= 0.25 * (mean_rank() + 1.0 + p);
    p -= 0.5 * q;
  }
  CHECK(near(generator.p, full({4}, p), 1e-12));
  CHECK(near(discriminator.p, full({4}, q), 1e-12));
}

TEST_CASE("gradients leave while backward still runs", "[n2]") {
  Toy toy(1.0, {"early", "late"});
  const at::Tensor early = toy.p;
  const at::Tensor late = toy.names["late"];
  DistributedOptimizer optimizer(toy.sgd, toy.names,
                                 {.name = "overlap", .op = ronde::ReduceOp::Sum});
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

TEST_CASE("destroying the optimiser removes its hooks", "[n2]") {
  Toy toy;
  {
    DistributedOptimizer optimizer(toy.sgd, toy.names);
    check_refused([&] { DistributedOptimizer again(toy.sgd, toy.names); },
                  {"has a DistributedOptimizer already"});
    toy.backward(1.0);
    optimizer.step();
  }
  toy.p.mutable_grad().zero_();
  toy.backward(ronde::rank());
  toy.backward(ronde::rank());
  toy.check_gradients(2.0 * ronde::rank());
  DistributedOptimizer again(toy.sgd, toy.names);
  again.zero_grad();
  toy.backward(ronde::rank());
  again.synchronize();
  toy.check_gradients(mean_rank());
}

TEST_CASE("an optimiser may be moved, and dropped with reductions in flight", "[n2]") {
  Toy toy;
  {
    DistributedOptimizer first(toy.sgd, toy.names);
    DistributedOptimizer second = std::move(first);
    toy.backward(ronde::rank());
    second.step();
    CHECK(&second.inner() == &toy.sgd);
    second.zero_grad();
    toy.backward(ronde::rank());
  }
  ronde::barrier();
  DistributedOptimizer third(toy.sgd, toy.names);
  third.zero_grad();
  toy.backward(ronde::rank());
  third.synchronize();
  toy.check_gradients(mean_rank());
}

TEST_CASE("a graph built before the optimiser died runs without it", "[n2]") {
  Toy toy;
  auto optimizer = std::make_unique<DistributedOptimizer>(toy.sgd, toy.names);
  const at::Tensor loss = (toy.p * (ronde::rank() + 1.0)).sum();
  optimizer.reset();
  loss.backward();
  toy.check_gradients(ronde::rank() + 1.0);
}

TEST_CASE("a parameter that is unfrozen later is reduced from then on", "[n2]") {
  Toy toy(1.0, {"a", "b"});
  const at::Tensor b = toy.names["b"].requires_grad_(false);
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  for (int step = 0; step < 3; ++step) {
    if (step == 1) b.requires_grad_();
    optimizer.zero_grad();
    toy.backward(ronde::rank());
    optimizer.step();
  }
  CHECK(near(toy.p, full({4}, 1.0 - 3 * mean_rank()), 1e-14));
  CHECK(near(b, full({4}, 1.0 - 2 * mean_rank()), 1e-14));
  CHECK(same_on_all_ranks(b));
}

}  // namespace ronde_test::optimizer_rules_test
