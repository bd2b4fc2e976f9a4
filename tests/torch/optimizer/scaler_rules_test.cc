// SPDX-License-Identifier: Apache-2.0
// What a GradScaler does where gradients are dropped or held back, scales differ, or steps fail,
// and what it refuses.
#include <limits>
#include <optional>

#include "tests/torch/toy.h"

namespace ronde_test::scaler_rules_test {

using ronde::DistributedOptimizer;
using ronde::GradScaler;

namespace {

constexpr double kTooLarge = std::numeric_limits<double>::infinity();

/// On rank `which`; 1 on the others.
double too_large_on(int which) {
  return ronde::rank() == which ? kTooLarge : 1.0;
}

}  // namespace

TEST_CASE("gradients that were dropped after unscale_ leave nothing to the next but an overflow",
          "[n1][n2]") {
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  GradScaler scaler({.init_scale = 1024.0});
  scaler.scale(toy.loss(3.0)).backward();
  scaler.unscale_(optimizer);
  toy.check_gradients(3.0);
  optimizer.zero_grad();
  scaler.scale(toy.loss(2.0)).backward();
  CHECK(scaler.step(optimizer));
  toy.check_values(1.0 - 2.0);
  scaler.update();
  // An optimizer that may have the other's place in memory.
  auto other = std::make_unique<DistributedOptimizer>(std::move(optimizer));
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
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  GradScaler scaler({.init_scale = ronde::rank() == 1 ? 4.0 : 8.0});
  scaler.scale(toy.loss(1.0)).backward();
  const std::string own = ronde::rank() == 1 ? "4" : "8";
  check_refused([&] { scaler.step(optimizer); },
                {"rank " + std::to_string(ronde::rank()) + ": ronde::GradScaler: ",
                 "from 4 to 8; this rank's is " + own + ". ", "load()"});
  optimizer.zero_grad();
  scaler.update(2.0);
  scaler.scale(toy.loss(1.0)).backward();
  CHECK(scaler.step(optimizer));
}

TEST_CASE("within skip_synchronize a scaler takes gradients as they are, on or off", "[n2][n3]") {
  for (const bool enabled : {true, false}) {
    CAPTURE(enabled);
    Toy toy;
    DistributedOptimizer optimizer(toy.sgd, toy.names);
    GradScaler scaler({.init_scale = 8.0, .enabled = enabled});
    const auto guard = optimizer.skip_synchronize();
    const auto hold_back = [&](double gradient) {
      optimizer.zero_grad();
      const auto alone = optimizer.no_sync();
      scaler.scale(toy.loss(gradient)).backward();
    };
    if (enabled) {
      // An overflow in gradients that were held back is every rank's.
      hold_back(too_large_on(1));
      CHECK_FALSE(scaler.step(optimizer));
      scaler.update(8.0);
      toy.check_values(1.0);
    }
    const double own = ronde::rank() + 1.0;
    hold_back(own);
    scaler.unscale_(optimizer);
    toy.check_gradients(own);
    CHECK(scaler.step(optimizer));
    toy.check_values(1.0 - own);
  }
}

TEST_CASE("several optimizers share a scale, also those of other sets and names", "[n2][n3]") {
  const auto sets = by_rank([](int rank) { return ronde::add_process_set({rank}); });
  for (const bool is_alone : {false, true}) {
    CAPTURE(is_alone);
    Toy first;
    Toy second;
    ronde::DistributedOptimizerOptions options;
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
    // By default a scaler asks the ranks of the optimizer alone.
    if (!is_alone || ronde::rank() != 0) continue;
    one.zero_grad();
    GradScaler alone;
    alone.scale(first.loss(1.0)).backward();
    CHECK(alone.step(one));
  }
  for (const ronde::ProcessSet set : sets) ronde::remove_process_set(set);
}

TEST_CASE("where gradients fail, all ranks that share the scale hear of it, and can try again",
          "[n2][n3]") {
  const auto sets = by_rank([](int rank) { return ronde::add_process_set({rank}); });
  for (const bool is_alone : {false, true}) {
    CAPTURE(is_alone);
    Toy toy;
    ronde::DistributedOptimizerOptions options{.find_nonfinite = true};
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
  for (const ronde::ProcessSet set : sets) ronde::remove_process_set(set);
}

TEST_CASE("a scale as small as can be is said not to be the reason", "[n1]") {
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  GradScaler scaler({.init_scale = 1e-37});
  check_refused([&] { scaler.update(1e-300); }, {"between"});
  std::string text;
  for (int step = 0; step < 5 && text.empty(); ++step) {
    optimizer.zero_grad();
    scaler.scale(toy.loss(kTooLarge)).backward();
    CHECK_FALSE(scaler.step(optimizer));
    if (scaler.get_scale() > 2.4e-38) {
      scaler.update();
    } else {
      text = usage_error([&] { scaler.update(); });
    }
  }
  CHECK(contains(text, "find_nonfinite"));
}

TEST_CASE("a scale that was set counts its steps anew, a saved one counts on", "[n1]") {
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  const auto step = [&](GradScaler& scaler, std::optional<double> scale = std::nullopt) {
    optimizer.zero_grad();
    scaler.scale(toy.loss(1.0)).backward();
    scaler.step(optimizer);
    scaler.update(scale);
    return scaler.get_scale();
  };
  GradScaler scaler({.init_scale = 8.0, .growth_interval = 2});
  CHECK(step(scaler) == 8.0);
  CHECK(step(scaler, 4.0) == 4.0);
  CHECK(step(scaler) == 4.0);
  GradScaler loaded({.growth_interval = 2});
  torch::serialize::OutputArchive saved;
  scaler.save(saved);
  auto archive = reread(saved);
  loaded.load(archive);
  CHECK(loaded.get_scale() == 4.0);
  for (GradScaler* each : {&scaler, &loaded}) CHECK(step(*each) == 8.0);
}

TEST_CASE("a scaler refuses what makes no sense, and says what to do", "[n1][n2]") {
  const std::vector<std::pair<ronde::GradScalerOptions, std::string>> wrong = {
      {{.init_scale = 0.0}, "init_scale is 0"},
      {{.init_scale = kTooLarge}, "between"},
      {{.growth_factor = 1.0}, "more than 1"},
      {{.backoff_factor = 1.0}, "between 0 and 1"},
      {{.growth_interval = 0}, "at least 1"}};
  for (const auto& [options, part] : wrong) {
    check_refused([&options = options] { GradScaler scaler(options); }, {part});
  }
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  GradScaler scaler({.init_scale = 8.0});
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

  // Of something else, and one that counts backwards.
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

}  // namespace ronde_test::scaler_rules_test
