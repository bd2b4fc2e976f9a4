// SPDX-License-Identifier: Apache-2.0
// Gradients in memory that the ranks of a host share.
#include "support.h"
#include "tests/support/captured_errors.h"

namespace ronde_test::gradient_views_test {
namespace {

/// Two ranks or more on one host have a symmetric heap.
bool shares_memory() {
  return ronde::default_runtime().symmetric_heap() != nullptr;
}

torch::nn::Sequential make_net() {
  torch::manual_seed(5);
  return torch::nn::Sequential(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 64, 5).bias(false)), torch::nn::ReLU(),
      torch::nn::Conv2d(torch::nn::Conv2dOptions(64, 32, 3).bias(false)), torch::nn::Flatten(),
      torch::nn::Linear(torch::nn::LinearOptions(32 * 6 * 6, 50).bias(false)));
}

at::Tensor loss_of(torch::nn::Sequential& net, int step) {
  torch::manual_seed(100 * step + ronde::rank());
  return net->forward(torch::randn({2, 3, 12, 12})).square().mean();
}

Tensors values_of(const Tensors& parameters) {
  Tensors values;
  for (const at::Tensor& parameter : parameters) values.push_back(parameter.detach().clone());
  return values;
}

struct Training {
  bool views = true;
  bool set_to_none = true;
};

/// The parameters after some steps.
Tensors train(const Training& training, int steps) {
  torch::nn::Sequential net = make_net();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  ronde::DistributedOptimizer optimizer(sgd, net->named_parameters(),
                                        {.gradient_views = training.views});
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad(training.set_to_none);
    loss_of(net, step).backward();
    optimizer.step();
  }
  return values_of(net->parameters());
}

}  // namespace

TEST_CASE("gradients in shared memory train to the same bits as gradients of their own") {
  const Tensors expected = train({.views = false}, 12);
  for (const bool set_to_none : {true, false}) {
    CHECK(equal(train({.set_to_none = set_to_none}, 12), expected));
  }
}

TEST_CASE("backward writes gradients where they are reduced, once it has learnt how", "[n2]") {
  REQUIRE(shares_memory());
  train({}, 3);
  const std::uint64_t copied = counted("gradients", "copied");
  const std::uint64_t placed = counted("gradients", "placed");
  constexpr int kSteps = 10;
  train({}, kSteps);
  // Three weights, all large enough; the first step of each may guess wrong.
  CHECK(counted("gradients", "copied") - copied <= 3);
  CHECK(counted("gradients", "placed") - placed >= 3 * (kSteps - 1));
  const std::uint64_t accumulated = counted("gradients", "accumulated");
  train({.set_to_none = false}, kSteps);
  CHECK(counted("gradients", "accumulated") - accumulated == 3 * (kSteps - 1));
}

TEST_CASE("gradients for which there is no room are staged, and a warning says so", "[n2][own]") {
  setenv("RONDE_SYMMETRIC_HEAP_BYTES", "64KiB", 1);
  use_ronde();
  REQUIRE(shares_memory());
  Tensors trained;
  std::string log;
  {
    const ronde::test::CapturedErrors errors;
    trained = train({}, 3);
    log = errors.text();
  }
  CHECK(contains(log, "raise RONDE_SYMMETRIC_HEAP_BYTES") == (ronde::rank() == 0));
  CHECK(counted("shm", "symmetric_operations") == 0);
  CHECK(equal(trained, train({.views = false}, 3)));
}

TEST_CASE("parameters without elements train along") {
  for (const bool views : {true, false}) {
    torch::manual_seed(4);
    torch::nn::Linear empty(8, 0);
    torch::nn::Linear full(8, 4);
    const Names names = {{"full.weight", full->weight},
                         {"full.bias", full->bias},
                         {"empty.weight", empty->weight},
                         {"empty.bias", empty->bias}};
    torch::optim::SGD sgd(names.values(), 0.1);
    ronde::DistributedOptimizer optimizer(sgd, names, {.gradient_views = views});
    // One that has nothing but these.
    torch::nn::Linear alone(torch::nn::LinearOptions(3, 0).bias(false));
    torch::optim::SGD other(alone->parameters(), 0.1);
    ronde::DistributedOptimizer without(other, alone->named_parameters(),
                                        {.gradient_views = views});
    for (int step = 0; step < 5; ++step) {
      const at::Tensor input = normal({2, 8}, step, at::kFloat);
      optimizer.zero_grad();
      // Backward reaches the empty ones in every other step.
      at::Tensor loss = full->forward(input).square().mean();
      if (step % 2 == 0) loss = loss + empty->forward(input).sum();
      loss.backward();
      optimizer.step();
      without.zero_grad();
      alone->forward(torch::ones({2, 3})).sum().backward();
      without.step();
    }
    CHECK(same_on_all_ranks(full->weight));
  }
}

TEST_CASE("a parameter whose memory has gaps has a gradient without") {
  Tensors trained;
  for (const bool views : {true, false}) {
    const at::Tensor p = normal({4, 6}, 3).slice(1, 0, 6, 2).detach().requires_grad_();
    const Names names = {{"p", p}};
    torch::optim::SGD sgd({p}, 0.1);
    ronde::DistributedOptimizer optimizer(sgd, names, {.gradient_views = views});
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      (p * normal({4, 3}, 10 * step + ronde::rank())).sum().backward();
      optimizer.synchronize();
      CHECK(p.grad().is_contiguous());
      optimizer.step();
    }
    at::Tensor expected = normal({4, 6}, 3).slice(1, 0, 6, 2);
    for (int step = 0; step < 5; ++step) {
      for (int rank = 0; rank < ronde::size(); ++rank) {
        const int seed = 10 * step + rank;
        expected = expected - 0.1 * normal({4, 3}, seed) / ronde::size();
      }
    }
    CHECK(near(p, expected, 1e-12));
    trained.push_back(p.detach());
  }
  CHECK(torch::equal(trained.front(), trained.back()));
}

TEST_CASE("gradients that are not the parameters' are left alone", "[n2]") {
  // Weights and the gradients of activations have one size, so that either may get the memory.
  constexpr std::int64_t kSize = 96;
  std::vector<Tensors> trained;
  for (const bool views : {false, true}) {
    torch::manual_seed(3);
    torch::nn::Sequential net;
    for (int i = 0; i < 4; ++i) {
      net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kSize, kSize).bias(false)));
      net->push_back(torch::nn::Tanh());
    }
    torch::optim::SGD sgd(net->parameters(), 0.05);
    ronde::DistributedOptimizer optimizer(sgd, net->named_parameters(), {.gradient_views = views});
    for (int step = 0; step < 6; ++step) {
      torch::manual_seed(50 * step + ronde::rank());
      const std::int64_t rows = step % 2 == 0 ? kSize : kSize / 2;
      const at::Tensor input = torch::randn({rows, kSize}).requires_grad_();
      optimizer.zero_grad();
      const at::Tensor loss = net->forward(input).square().mean();
      // What autograd::grad returns is the caller's, also while backward runs again.
      const auto kept = torch::autograd::grad({loss}, net->parameters(), {}, true);
      const Tensors copies = values_of(kept);
      loss.backward();
      optimizer.step();
      CHECK(equal(kept, copies));
    }
    trained.push_back(values_of(net->parameters()));
  }
  CHECK(equal(trained[0], trained[1]));
}

TEST_CASE("a gradient that was replaced is reduced all the same", "[n2]") {
  const at::Tensor p = ones_parameter({3, 4});
  const Names names = {{"p", p}};
  torch::optim::SGD sgd({p}, 1.0);
  ronde::DistributedOptimizer optimizer(sgd, names, {.op = ronde::ReduceOp::Sum});
  const double ranks = ronde::size();
  for (int step = 0; step < 3; ++step) {
    p.mutable_grad() = full({3, 4}, 2.0);
    (p * 5).sum().backward();  // adds to it
    optimizer.synchronize();
    CHECK(torch::equal(p.grad(), full({3, 4}, 7 * ranks)));
    optimizer.zero_grad();
    (p * 3).sum().backward();
    {
      // As a program that scales gradients by hand does.
      const at::NoGradGuard no_grad;
      p.mutable_grad() = p.grad();
    }
    optimizer.synchronize();
    CHECK(torch::equal(p.grad(), full({3, 4}, 3 * ranks)));
    optimizer.zero_grad();
  }
}

TEST_CASE("the memory of gradients is given back, but not while one is in use", "[n2]") {
  REQUIRE(shares_memory());
  const auto heap = ronde::default_runtime().symmetric_heap();
  const std::size_t before = heap->reserved_bytes();
  at::Tensor kept;
  {
    torch::nn::Sequential net = make_net();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    ronde::DistributedOptimizer optimizer(sgd, net->named_parameters());
    CHECK(heap->reserved_bytes() > before);
    loss_of(net, 0).backward();
    optimizer.step();
    kept = net->parameters().back().grad();
  }
  CHECK(heap->reserved_bytes() > before);
  const at::Tensor copy = kept.clone();
  train({}, 2);
  CHECK(torch::equal(kept, copy));
  kept.reset();
  CHECK(heap->reserved_bytes() == before);
}

TEST_CASE("parameters that are laid out differently on the ranks are refused", "[n2]") {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(4, 4, 3));
  if (ronde::rank() == 1) {
    const at::NoGradGuard no_grad;
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  torch::optim::SGD sgd(conv->parameters(), 0.1);
  check_refused([&] { ronde::DistributedOptimizer(sgd, conv->named_parameters()); },
                {"strides [36, 1, 12, 4]"});
}

}  // namespace ronde_test::gradient_views_test
