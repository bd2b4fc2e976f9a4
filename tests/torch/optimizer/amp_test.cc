// SPDX-License-Identifier: Apache-2.0
// Mixed precision: training with a GradScaler, and Autocast.
#include <ATen/autocast_mode.h>

#include <limits>
#include <stdexcept>

#include "tests/torch/optimizer/regression.h"
#include "tests/torch/toy.h"

namespace ronde_test::amp_test {

using ronde::Autocast;
using ronde::DistributedOptimizer;
using ronde::GradScaler;

namespace {

constexpr double kOverflow = std::numeric_limits<double>::infinity();

/// What the scale has to be, step by step: the rule in a few lines.
struct ScaleRule {
  double scale = 8.0;
  int good_steps = 0;
  void step(bool found) {
    if (found) {
      scale *= 0.25;
      good_steps = 0;
    } else if (++good_steps == 3) {
      scale *= 2.0;
      good_steps = 0;
    }
  }
};

ronde::GradScalerOptions options() {
  return {.init_scale = 8.0, .growth_factor = 2.0, .backoff_factor = 0.25, .growth_interval = 3};
}

}  // namespace

TEST_CASE("sparse gradients are divided by the scale", "[n2]") {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true));
  at::Tensor expected = at::ones({4, 2});
  {
    const torch::NoGradGuard no_grad;
    embedding->weight.copy_(expected);
  }
  expected[1].fill_(-1.0);  // two words, on each rank
  torch::optim::SGD sgd(embedding->parameters(), 1.0);
  DistributedOptimizer optimizer(sgd, embedding->named_parameters());
  GradScaler scaler(options());
  const at::Tensor words = torch::tensor({1, 1}, at::kLong);
  scaler.scale(embedding->forward(words).sum()).backward();
  CHECK(scaler.step(optimizer));
  CHECK(torch::equal(embedding->weight.detach(), expected));
}

TEST_CASE("a scale that is a power of two changes no bit of the training") {
  const auto train = [](bool scaled) {
    Regression regression(at::kFloat);
    torch::optim::SGD sgd(regression.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    DistributedOptimizer optimizer(sgd, regression.names());
    GradScaler scaler({.init_scale = 1024.0, .growth_interval = 2, .enabled = scaled});
    for (int step = 0; step < 6; ++step) {
      optimizer.zero_grad();
      scaler.scale(regression.loss(step)).backward();
      if (step % 2 == 1) {
        scaler.unscale_(optimizer);
        torch::nn::utils::clip_grad_norm_(regression.parameters(), 0.05);
      }
      CHECK(scaler.step(optimizer));
      scaler.update();
    }
    CHECK(scaler.get_scale() == (scaled ? 8192.0 : 1.0));
    return flatten(regression.parameters());
  };
  const at::Tensor mine = train(true);
  if (ronde::size() <= 2) CHECK(torch::equal(mine, train(false)));
  CHECK(near(mine, train(false), 1e-6));
  CHECK(same_on_all_ranks(mine));
}

TEST_CASE("a step whose gradient overflows on one rank is left out on all", "[n1][n2][n3]") {
  for (const ronde::ReduceOp op : {ronde::ReduceOp::Sum, ronde::ReduceOp::Adasum}) {
    Toy toy(0.5);
    DistributedOptimizer optimizer(toy.sgd, toy.names, {.op = op});
    GradScaler scaler(options());
    ScaleRule rule;
    double expected = 1.0;
    for (int step = 0; step < 24; ++step) {
      CAPTURE(to_string(op), step);
      const bool overflows = step == 1 || step == 2 || step == 8 || step == 20;
      const bool here = overflows && ronde::rank() == step % ronde::size();
      optimizer.zero_grad();
      scaler.scale(toy.loss(here ? kOverflow : 3.0)).backward();
      CHECK(scaler.step(optimizer) == !overflows);
      scaler.update();
      rule.step(overflows);
      // Adasum of equal vectors is one of them.
      const double sum = op == ronde::ReduceOp::Sum ? 3.0 * ronde::size() : 3.0;
      if (!overflows) expected -= 0.5 * sum;
      CHECK(scaler.get_scale() == rule.scale);
      CHECK(near(toy.p, full({4}, expected), 1e-12));
    }
  }
}

TEST_CASE("what only the wire makes overflow is found, too", "[n2]") {
  const at::Tensor p = at::ones({4}).requires_grad_();
  const Names names = {{"p", p}};
  torch::optim::SGD sgd({p}, 1.0);
  DistributedOptimizer optimizer(sgd, names, {.compression = ronde::Compression::fp16()});
  GradScaler scaler({.init_scale = 65536.0});
  int skipped = 0;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    scaler.scale((p * 3.0).sum()).backward();
    if (!scaler.step(optimizer)) ++skipped;
    scaler.update();
  }
  // 3 * 65536 and 3 * 32768 are no f16, 3 * 16384 is.
  CHECK(skipped == 2);
  CHECK(near(p, full({4}, 1.0 - 2 * 3.0), 1e-6));
}

TEST_CASE("an overflow in a parameter of one rank reaches the others", "[n2][n3]") {
  const at::Tensor shared = at::ones({2}).requires_grad_();
  const at::Tensor own = at::ones({ronde::rank() + 1}).requires_grad_();
  const Names names = {{"shared", shared}, {"own", own}};
  torch::optim::SGD sgd({shared, own}, 1.0);
  DistributedOptimizer optimizer(
      sgd, names, {.op = ronde::ReduceOp::Sum, .prescale = 4.0, .local_parameters = {own}});
  GradScaler scaler({.init_scale = 1.0});
  // Infinite as it is, or finite and four times as much is not.
  for (const double large : {kOverflow, 2e38}) {
    for (const bool synchronized_before : {false, true}) {
      optimizer.zero_grad();
      const double factor = ronde::rank() == 1 ? large : 1.0;
      scaler.scale(shared.sum() + (own * factor).sum()).backward();
      if (synchronized_before) optimizer.synchronize();
      CHECK_FALSE(scaler.step(optimizer));
      scaler.update(1.0);
    }
  }
  optimizer.zero_grad();
  scaler.scale(shared.sum() + own.sum()).backward();
  CHECK(scaler.step(optimizer));
  CHECK(near(shared, full({2}, 1.0 - 4.0 * ronde::size()), 1e-6));
  CHECK(near(own, full({ronde::rank() + 1}, 1.0 - 4.0), 1e-6));
}

TEST_CASE("autocast computes in bf16 while it lives, and nests", "[n1]") {
  const at::Tensor a = at::ones({4, 4});
  const auto dtype = [&] { return a.matmul(a).scalar_type(); };
  CHECK(dtype() == at::kFloat);
  {
    const Autocast outer(at::kCPU);
    CHECK(dtype() == at::kBFloat16);
    for (const bool enabled : {false, true}) {
      {
        const Autocast inner(at::kCPU, at::kHalf, enabled);
        CHECK(dtype() == (enabled ? at::kHalf : at::kFloat));
      }
      CHECK(dtype() == at::kBFloat16);
    }
  }
  CHECK(dtype() == at::kFloat);
  {
    const Autocast of_gpus(at::kCUDA, at::kHalf);
    CHECK(dtype() == at::kFloat);
    CHECK(at::autocast::is_autocast_enabled(at::kCUDA));
    CHECK(at::autocast::get_autocast_dtype(at::kCUDA) == at::kHalf);
  }
  CHECK_FALSE(at::autocast::is_autocast_enabled(at::kCUDA));
  try {
    const Autocast guard(at::kCPU);
    throw std::runtime_error("on the way");
  } catch (const std::runtime_error&) {
    CHECK(dtype() == at::kFloat);
  }
}

TEST_CASE("autocast sees weights that have changed between two of them", "[n1]") {
  // LibTorch keeps converted weights while autocast lasts.
  torch::nn::Linear layer(2, 2);
  const at::Tensor x = at::ones({1, 2});
  const auto forward = [&] {
    const Autocast guard(at::kCPU);
    return layer->forward(x).to(at::kFloat).sum().item<float>();
  };
  const torch::NoGradGuard no_grad;
  layer->bias.zero_();
  at::Tensor weight = layer->weight;
  weight.fill_(1.0);
  CHECK(forward() == 4.0F);
  weight.fill_(2.0);
  CHECK(forward() == 8.0F);
}

TEST_CASE("training in half precision learns, and keeps the same bits on all ranks",
          "[n1][n2][n3]") {
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kHalf);
  CAPTURE(at::toString(dtype));
  Regression regression(at::kFloat);
  torch::optim::Adam adam(regression.parameters(), 0.02);
  DistributedOptimizer optimizer(adam, regression.names());
  GradScaler scaler;
  double first = 0;
  double last = 0;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const Autocast guard(at::kCPU, dtype);
      loss = regression.loss(step % 5);
    }
    scaler.scale(loss).backward();
    CHECK(regression.parameters().front().grad().scalar_type() == at::kFloat);
    scaler.step(optimizer);
    scaler.update();
    last = ronde::allreduce(loss.detach(), {.name = "loss"}).item<double>();
    if (step == 0) first = last;
  }
  CHECK(last < 0.5 * first);
  CHECK(same_on_all_ranks(flatten(regression.parameters())));
}

}  // namespace ronde_test::amp_test
