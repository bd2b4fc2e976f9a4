// SPDX-License-Identifier: Apache-2.0
#include <ATen/autocast_mode.h>

#include <limits>

#include "tests/torch/toy.h"

namespace ronde_test::amp_test {
namespace {

using ronde::Autocast;
using ronde::GradScaler;

constexpr double kOverflow = std::numeric_limits<double>::infinity();

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

/// A toy, and the scaler of its losses.
struct ScaledToy : WrappedToy {
  explicit ScaledToy(const ronde::GradScalerOptions& of_scaler = {.init_scale = 8.0},
                     const DistributedOptimizerOptions& options = {}, double lr = 1.0)
      : WrappedToy(options, lr), scaler(of_scaler) {}

  void backward(double gradient) {
    optimizer.zero_grad();
    scaler.scale(loss(gradient)).backward();
  }
  /// Returns whether the step was taken.
  bool step(double gradient, std::optional<double> scale = std::nullopt) {
    backward(gradient);
    const bool is_taken = scaler.step(optimizer);
    scaler.update(scale);
    return is_taken;
  }

  GradScaler scaler;
};

/// On rank `which`; 1 on the others.
double too_large_on(int which) {
  return ronde::rank() == which ? kOverflow : 1.0;
}

TEST_CASE("a step whose gradient overflows on one rank is left out on all", "[n1][n2][n3]") {
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Adasum}) {
    ScaledToy toy({.init_scale = 8.0, .backoff_factor = 0.25, .growth_interval = 3}, {.op = op},
                  0.5);
    ScaleRule rule;
    double expected = 1.0;
    for (int step = 0; step < 24; ++step) {
      CAPTURE(to_string(op), step);
      const bool overflows = step == 1 || step == 2 || step == 8 || step == 20;
      const bool here = overflows && ronde::rank() == step % ronde::size();
      CHECK(toy.step(here ? kOverflow : 3.0) == !overflows);
      rule.step(overflows);
      // Adasum of equal vectors is one of them.
      const double sum = op == ReduceOp::Sum ? 3.0 * ronde::size() : 3.0;
      if (!overflows) expected -= 0.5 * sum;
      CHECK(toy.scaler.get_scale() == rule.scale);
      CHECK(near(toy.p, full({4}, expected), 1e-12));
    }
  }
}

TEST_CASE("what only the wire makes overflow is found, too", "[n2]") {
  const at::Tensor p = at::ones({4}).requires_grad_();
  auto optimizer = wrapped_sgd({{"p", p}}, {.compression = Compression::fp16()});
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
  auto optimizer = wrapped_sgd({{"shared", shared}, {"own", own}},
                               {.op = ReduceOp::Sum, .prescale = 4.0, .local_parameters = {own}});
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

TEST_CASE("training in half precision learns, with the same bits on all ranks", "[n1][n2][n3]") {
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kHalf);
  CAPTURE(at::toString(dtype));
  Regression regression(at::kFloat);
  torch::optim::Adam adam(regression.parameters(), 0.02);
  DistributedOptimizer optimizer(adam, regression.names());
  GradScaler scaler;
  double first = 0, last = 0;
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

TEST_CASE("gradients dropped after unscale_ leave the next nothing but an overflow", "[n1][n2]") {
  ScaledToy toy({.init_scale = 1024.0});
  GradScaler& scaler = toy.scaler;
  toy.backward(3.0);
  scaler.unscale_(toy.optimizer);
  toy.check_gradients(3.0);
  CHECK(toy.step(2.0));
  toy.check_values(1.0 - 2.0);
  // An optimizer that may have the other's place in memory.
  auto other = std::make_unique<DistributedOptimizer>(std::move(toy.optimizer));
  scaler.scale(toy.loss(2.0)).backward();
  scaler.unscale_(*other);
  other = nullptr;
  toy.sgd.zero_grad();
  other = std::make_unique<DistributedOptimizer>(toy.sgd, toy.names);
  scaler.scale(toy.loss(2.0)).backward();
  CHECK(scaler.step(*other));
  toy.check_values(1.0 - 4.0);
  scaler.update(8.0);
  other->zero_grad();
  scaler.scale(toy.loss(too_large_on(0))).backward();
  scaler.unscale_(*other);
  other->zero_grad();
  scaler.scale(toy.loss(2.0)).backward();
  CHECK(scaler.step(*other));
  scaler.update();
  CHECK(scaler.get_scale() == 4.0);
}

TEST_CASE("ranks whose scales differ hear of it", "[n2][n3]") {
  ScaledToy toy({.init_scale = ronde::rank() == 1 ? 4.0 : 8.0});
  const std::string own = ronde::rank() == 1 ? "4" : "8";
  check_refused([&] { toy.step(1.0); },
                {"rank " + std::to_string(ronde::rank()) + ": ronde::GradScaler: ",
                 "from 4 to 8; this rank's is " + own + ". ", "load()"});
  toy.scaler.update(2.0);
  CHECK(toy.step(1.0));
}

TEST_CASE("within skip_synchronize a scaler takes gradients as they are, on or off", "[n2][n3]") {
  const bool enabled = GENERATE(true, false);
  CAPTURE(enabled);
  ScaledToy toy({.init_scale = 8.0, .enabled = enabled});
  CHECK(toy.scaler.get_scale() == (enabled ? 8.0 : 1.0));
  const auto guard = toy.optimizer.skip_synchronize();
  const auto hold_back = [&](double gradient) {
    toy.optimizer.zero_grad();
    const auto alone = toy.optimizer.no_sync();
    toy.scaler.scale(toy.loss(gradient)).backward();
  };
  if (enabled) {
    // An overflow in gradients that were held back is every rank's.
    hold_back(too_large_on(1));
    CHECK_FALSE(toy.scaler.step(toy.optimizer));
    toy.scaler.update(8.0);
    toy.check_values(1.0);
  }
  const double own = ronde::rank() + 1.0;
  hold_back(own);
  toy.scaler.unscale_(toy.optimizer);
  toy.check_gradients(own);
  CHECK(toy.scaler.step(toy.optimizer));
  toy.check_values(1.0 - own);
}

TEST_CASE("several optimizers share a scale, also those of other sets and names", "[n2][n3]") {
  const auto sets = by_rank([](int rank) { return ronde::add_process_set({rank}); });
  for (const bool is_alone : {false, true}) {
    CAPTURE(is_alone);
    Toy first, second;
    DistributedOptimizerOptions options;
    if (is_alone) options.process_set = mine_of(sets);
    const std::string shard = is_alone ? "shard" + std::to_string(ronde::rank()) : "whole";
    options.name = shard + "a";
    DistributedOptimizer one(first.sgd, first.names, options);
    options.name = shard + "b";
    DistributedOptimizer two(second.sgd, second.names, options);
    GradScaler scaler({.init_scale = 8.0, .process_set = ronde::kGlobalSet});
    scaler.scale(first.loss(1.0) + second.loss(too_large_on(1))).backward();
    CHECK(scaler.step(one));
    CHECK_FALSE(scaler.step(two));
    scaler.update();
    CHECK(scaler.get_scale() == 4.0);
    // By default only the ranks of the optimizer share a scale.
    if (!is_alone || ronde::rank() != 0) continue;
    one.zero_grad();
    GradScaler alone;
    alone.scale(first.loss(1.0)).backward();
    CHECK(alone.step(one));
  }
  for (const ProcessSet set : sets) ronde::remove_process_set(set);
}

TEST_CASE("where gradients fail, all ranks of the scale hear of it and can try again", "[n2][n3]") {
  const auto sets = by_rank([](int rank) { return ronde::add_process_set({rank}); });
  for (const bool is_alone : {false, true}) {
    CAPTURE(is_alone);
    Toy toy;
    DistributedOptimizerOptions options{.find_nonfinite = true};
    if (is_alone) options.process_set = mine_of(sets);
    DistributedOptimizer optimizer(toy.sgd, toy.names, options);
    GradScaler scaler({.init_scale = 8.0, .process_set = ronde::kGlobalSet});
    scaler.scale(toy.loss(too_large_on(1))).backward();
    check_refused([&] { scaler.step(optimizer); },
                  {is_alone && ronde::rank() != 1 ? "share the scale" : "not finite"});
    optimizer.zero_grad();
    scaler.scale(toy.loss(1.0)).backward();
    CHECK(scaler.step(optimizer));
    toy.check_values(0.0);
  }
  for (const ProcessSet set : sets) ronde::remove_process_set(set);
}

TEST_CASE("a scale as small as can be is said not to be the reason", "[n1]") {
  ScaledToy toy({.init_scale = 1e-37});
  check_refused([&] { toy.scaler.update(1e-300); }, {"between"});
  while (toy.scaler.get_scale() > 2.4e-38) CHECK_FALSE(toy.step(kOverflow));
  toy.backward(kOverflow);
  CHECK_FALSE(toy.scaler.step(toy.optimizer));
  check_refused([&] { toy.scaler.update(); }, {"find_nonfinite"});
}

TEST_CASE("a scale that was set counts its steps anew, a saved one counts on", "[n1]") {
  ScaledToy toy({.init_scale = 8.0, .growth_interval = 2});
  const auto scale_after_step = [&](std::optional<double> scale = std::nullopt) {
    CHECK(toy.step(1.0, scale));
    return toy.scaler.get_scale();
  };
  CHECK(scale_after_step() == 8.0);
  CHECK(scale_after_step(4.0) == 4.0);
  CHECK(scale_after_step() == 4.0);
  torch::serialize::OutputArchive saved;
  toy.scaler.save(saved);
  CHECK(scale_after_step() == 8.0);
  auto archive = reread(saved);
  toy.scaler.load(archive);
  CHECK(toy.scaler.get_scale() == 4.0);
  CHECK(scale_after_step() == 8.0);
}

TEST_CASE("a scaler refuses what makes no sense, and says what to do", "[n1][n2]") {
  const std::vector<std::pair<ronde::GradScalerOptions, std::string>> wrong = {
      {{.init_scale = 0.0}, "init_scale is 0"},
      {{.init_scale = kOverflow}, "between"},
      {{.growth_factor = 1.0}, "more than 1"},
      {{.backoff_factor = 1.0}, "between 0 and 1"},
      {{.growth_interval = 0}, "at least 1"}};
  for (const auto& [options, part] : wrong) {
    check_refused([&options = options] { GradScaler scaler(options); }, {part});
  }
  ScaledToy toy;
  DistributedOptimizer& optimizer = toy.optimizer;
  GradScaler& scaler = toy.scaler;
  check_refused([&] { scaler.update(); }, {"Call step()"});
  check_refused([&] { scaler.update(-1.0); }, {"between"});
  scaler.scale(toy.loss(1.0)).backward();
  scaler.unscale_(optimizer);
  check_refused([&] { scaler.unscale_(optimizer); }, {"divided twice"});
  scaler.step(optimizer);
  check_refused([&] { scaler.step(optimizer); }, {"twice"});
  scaler.update(4.0);
  CHECK(scaler.get_scale() == 4.0);

  torch::optim::LBFGS lbfgs({at::ones({1}).requires_grad_()}, 1.0);
  DistributedOptimizer closures(lbfgs, {{"q", lbfgs.parameters().front()}});
  check_refused([&] { scaler.step(closures); }, {"LBFGS"});
  check_refused([&] { scaler.unscale_(closures); }, {"LBFGS"});

  torch::serialize::OutputArchive other;
  other.write("something", c10::IValue(1));
  torch::serialize::OutputArchive backwards;
  backwards.write("scale", c10::IValue(8.0));
  backwards.write("steps_since_change", c10::IValue(-1));
  for (torch::serialize::OutputArchive* written : {&other, &backwards}) {
    auto archive = reread(*written);
    check_refused([&] { scaler.load(archive); }, {"no GradScaler"});
    CHECK(scaler.get_scale() == 4.0);
  }
}

}  // namespace
}  // namespace ronde_test::amp_test
