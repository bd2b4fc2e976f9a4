// SPDX-License-Identifier: Apache-2.0
// Gradients of all layouts and dtypes, also in memory that the ranks of a host share. Whole
// trainings: torch.whole_batch.
#include "tests/support/harness/captured_errors.h"
#include "tests/torch/toy.h"

namespace ronde_test::optimizer_gradients_test {
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

/// The parameters after some steps.
at::Tensor train(int steps, bool views = true, bool set_to_none = true) {
  torch::nn::Sequential net = make_net();
  auto optimizer = wrapped_sgd(net->named_parameters(), {.gradient_views = views},
                               torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad(set_to_none);
    loss_of(net, step).backward();
    optimizer.step();
  }
  return flatten(net->parameters());
}

TEST_CASE("gradients in shared memory train to the same bits as gradients of their own") {
  const at::Tensor expected = train(12, /*views=*/false);
  for (const bool set_to_none : {true, false}) {
    CHECK(torch::equal(train(12, /*views=*/true, set_to_none), expected));
  }
}

TEST_CASE("backward writes gradients where they are reduced, once it has learnt how", "[n2]") {
  REQUIRE(shares_memory());
  train(3);
  const std::uint64_t copied = counted("gradients", "copied");
  const std::uint64_t placed = counted("gradients", "placed");
  constexpr int kSteps = 10;
  train(kSteps);
  // Three weights, all large enough; the first step of each may guess wrong.
  CHECK(counted("gradients", "copied") - copied <= 3);
  CHECK(counted("gradients", "placed") - placed >= 3 * (kSteps - 1));
  const std::uint64_t accumulated = counted("gradients", "accumulated");
  train(kSteps, /*views=*/true, /*set_to_none=*/false);
  CHECK(counted("gradients", "accumulated") - accumulated == 3 * (kSteps - 1));
}

TEST_CASE("gradients for which there is no room are staged, and a warning says so", "[n2][own]") {
  setenv("RONDE_SYMMETRIC_HEAP_BYTES", "64KiB", 1);
  use_ronde();
  REQUIRE(shares_memory());
  at::Tensor trained;
  {
    const ronde::test::CapturedErrors errors;
    trained = train(3);
    CHECK(contains(errors.text(), "raise RONDE_SYMMETRIC_HEAP_BYTES") == (ronde::rank() == 0));
  }
  CHECK(counted("shm", "symmetric_operations") == 0);
  CHECK(torch::equal(trained, train(3, /*views=*/false)));
}

TEST_CASE("parameters without elements train along, and alone") {
  const bool views = GENERATE(true, false);
  const bool alone = GENERATE(true, false);
  torch::manual_seed(4);
  torch::nn::Linear empty(8, 0);
  torch::nn::Linear full(8, 4);
  Names names = {{"empty.weight", empty->weight}, {"empty.bias", empty->bias}};
  if (!alone) names.update({{"full.weight", full->weight}, {"full.bias", full->bias}});
  auto optimizer = wrapped_sgd(names, {.gradient_views = views}, 0.1);
  for (int step = 0; step < 5; ++step) {
    const at::Tensor input = normal({2, 8}, 10 * step + ronde::rank(), at::kFloat);
    optimizer.zero_grad();
    at::Tensor loss = full->forward(input).square().mean();
    // Backward reaches the empty ones in every other step.
    if (step % 2 == 0) loss = loss + empty->forward(input).sum();
    loss.backward();
    optimizer.step();
  }
  CHECK(same_on_all_ranks(full->weight));
}

TEST_CASE("a parameter whose memory has gaps has a gradient without") {
  Tensors trained;
  for (const bool views : {true, false}) {
    const auto make = [] { return normal({4, 6}, 3).slice(1, 0, 6, 2); };
    const auto factor = [](int step, int rank) { return normal({4, 3}, 10 * step + rank); };
    const at::Tensor p = make().requires_grad_();
    at::Tensor expected = make();
    auto optimizer = wrapped_sgd({{"p", p}}, {.gradient_views = views}, 0.1);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      (p * factor(step, ronde::rank())).sum().backward();
      optimizer.synchronize();
      CHECK(p.grad().is_contiguous());
      optimizer.step();
      expected -= 0.1 * at::stack(by_rank([&](int rank) { return factor(step, rank); })).mean(0);
    }
    CHECK(near(p, expected, 1e-12));
    trained.push_back(p.detach());
  }
  CHECK(torch::equal(trained.front(), trained.back()));
}

TEST_CASE("gradients that are not the parameters' are left alone", "[n2]") {
  // Weights and the gradients of activations have one size, so that either may get the memory.
  constexpr std::int64_t kSize = 96;
  Tensors trained;
  for (const bool views : {false, true}) {
    torch::manual_seed(3);
    torch::nn::Sequential net;
    for (int i = 0; i < 4; ++i) {
      net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kSize, kSize).bias(false)));
      net->push_back(torch::nn::Tanh());
    }
    auto optimizer = wrapped_sgd(net->named_parameters(), {.gradient_views = views}, 0.05);
    for (int step = 0; step < 6; ++step) {
      torch::manual_seed(50 * step + ronde::rank());
      const std::int64_t rows = step % 2 == 0 ? kSize : kSize / 2;
      const at::Tensor input = torch::randn({rows, kSize}).requires_grad_();
      optimizer.zero_grad();
      const at::Tensor loss = net->forward(input).square().mean();
      // Results of autograd::grad are the caller's, even while backward runs again.
      const auto kept = torch::autograd::grad({loss}, net->parameters(), {}, true);
      const at::Tensor copies = flatten(kept);
      loss.backward();
      optimizer.step();
      CHECK(torch::equal(flatten(kept), copies));
    }
    trained.push_back(flatten(net->parameters()));
  }
  CHECK(torch::equal(trained[0], trained[1]));
}

TEST_CASE("a gradient that was replaced is reduced all the same", "[n2]") {
  WrappedToy toy({.op = ReduceOp::Sum});
  for (int step = 0; step < 3; ++step) {
    toy.p.mutable_grad() = full({4}, 2.0);
    toy.backward(5.0);  // adds to it
    toy.optimizer.synchronize();
    toy.check_gradients(7.0 * ronde::size());
    toy.optimizer.zero_grad();
    toy.backward(3.0);
    toy.p.mutable_grad() = toy.p.grad();
    toy.optimizer.synchronize();
    toy.check_gradients(3.0 * ronde::size());
    toy.optimizer.zero_grad();
  }
}

TEST_CASE("the memory of gradients is given back, but not while one is in use", "[n2]") {
  REQUIRE(shares_memory());
  const auto heap = ronde::default_runtime().symmetric_heap();
  const std::size_t before = heap->reserved_bytes();
  at::Tensor kept;
  {
    torch::nn::Sequential net = make_net();
    auto optimizer = wrapped_sgd(net->named_parameters(), {}, 0.1);
    CHECK(heap->reserved_bytes() > before);
    loss_of(net, 0).backward();
    optimizer.step();
    kept = net->parameters().back().grad();
  }
  CHECK(heap->reserved_bytes() > before);
  const at::Tensor copy = kept.clone();
  train(2);
  CHECK(torch::equal(kept, copy));
  kept.reset();
  CHECK(heap->reserved_bytes() == before);
}

TEST_CASE("parameters that are laid out differently on the ranks are refused", "[n2]") {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(4, 4, 3));
  if (ronde::rank() == 1) {
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  check_refused([&] { wrapped_sgd(conv->named_parameters()); }, {"strides [36, 1, 12, 4]"});
}

TEST_CASE("channels-last gradients are averaged and keep their layout") {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(4, 6, 3).bias(false));
  conv->to(at::kDouble);
  fill_normal(conv->parameters(), 3);
  conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  auto optimizer = wrapped_sgd(conv->named_parameters(), {}, 0.1);
  const auto loss = [](const at::Tensor& weight, int rank) {
    return torch::conv2d(normal({2, 4, 8, 8}, 50 + rank), weight).pow(2).sum();
  };
  const at::Tensor whole = conv->weight.detach().clone().requires_grad_();
  at::stack(by_rank([&](int rank) { return loss(whole, rank); })).mean().backward();
  loss(conv->weight, ronde::rank()).backward();
  optimizer.synchronize();
  CHECK_FALSE(conv->weight.grad().is_contiguous());
  CHECK(conv->weight.grad().strides() == conv->weight.strides());
  CHECK(near(conv->weight.grad(), whole.grad(), 1e-12));
}

TEST_CASE("gradients that share memory are each reduced once") {
  const at::Tensor a = ones_parameter({2, 6}), b = ones_parameter({3, 4});
  auto optimizer = wrapped_sgd({{"a", a}, {"b", b}}, {.op = ReduceOp::Sum});
  // Both views' gradients are one tensor, which autograd hands to both parameters.
  ((a.view({12}) + b.view({12})) * full({12}, ronde::rank() + 1.0)).sum().backward();
  optimizer.synchronize();
  CHECK_FALSE(a.grad().is_alias_of(b.grad()));
  CHECK(torch::equal(a.grad(), full({2, 6}, sum_to_size())));
  CHECK(torch::equal(b.grad(), full({3, 4}, sum_to_size())));
}

TEST_CASE("a gradient of its own memory is reduced where it is, without a copy", "[n2]") {
  WrappedToy toy({.gradient_views = false});
  const void* incoming = nullptr;
  toy.p.register_hook([&](const at::Tensor& gradient) { incoming = gradient.data_ptr(); });
  (toy.p * toy.p).sum().backward();
  toy.optimizer.synchronize();
  CHECK(toy.p.grad().data_ptr() == incoming);
}

TEST_CASE("a gradient that the caller keeps a view of is not changed under its hands", "[n2]") {
  WrappedToy toy({.op = ReduceOp::Sum});
  const at::Tensor seed = full({2, 2}, 3.0);
  toy.p.view({2, 2}).backward(seed);
  toy.optimizer.synchronize();
  CHECK(torch::equal(seed, full({2, 2}, 3.0)));
  toy.check_gradients(3.0 * ronde::size());
}

TEST_CASE("tied weights are reduced once, under their first name, with op and scales", "[n2]") {
  Toy toy;
  toy.names.insert("tied", toy.p);
  DistributedOptimizer optimizer(toy.sgd, toy.names,
                                 {.op = ReduceOp::Sum, .prescale = 0.5, .postscale = 8.0});
  (toy.p * toy.p * (ronde::rank() + 1.0)).sum().backward();
  optimizer.synchronize();
  toy.check_gradients(2.0 * 4.0 * sum_to_size());
}

}  // namespace
}  // namespace ronde_test::optimizer_gradients_test
