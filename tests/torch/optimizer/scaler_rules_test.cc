// SPDX-License-Identifier: Apache-2.0
// What a GradScaler does where gradients are dropped or held back, scales differ, or steps fail,
// and what it refuses.
#include <limits>
#include <optional>

#include "toy.h"

namespace ronde_test::scaler_rules_test {

using ronde::DistributedOptimizer;
using ronde::GradScaler;

namespace {

constexpr double kTooLarge = std::numeric_limits<double>::infinity();

/// For each rank a process set of that rank alone, while it lives.
class SetsOfOne {
 public:
  SetsOfOne() : sets_(by_rank([](int rank) { return ronde::add_process_set({rank}); })) {}
  ~SetsOfOne() {
    for (const ronde::ProcessSet set : sets_) ronde::remove_process_set(set);
  }
  SetsOfOne(const SetsOfOne&) = delete;
  SetsOfOne& operator=(const SetsOfOne&) = delete;
  ronde::ProcessSet mine() const { return mine_of(sets_); }

 private:
  const std::vector<ronde::ProcessSet> sets_;
};

torch::serialize::InputArchive saved(const GradScaler& scaler) {
  torch::serialize::OutputArchive archive;
  scaler.save(archive);
  return reread(archive);
}

}  // namespace

TEST_CASE("gradients that were dropped after unscale_ leave nothing to the next", "[n1][n2]") {
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
  // An optimiser that may have the other's place in memory.
  auto other = std::make_unique<DistributedOptimizer>(std::move(optimizer));
  scaler.scale(toy.loss(2.0)).backward();
  scaler.unscale_(*other);
  other = nullptr;
  toy.sgd.zero_grad();
  other = std::make_unique<DistributedOptimizer>(toy.sgd, toy.names);
  scaler.scale(toy.loss(2.0)).backward();
  CHECK(scaler.step(*other));
  toy.check_values(1.0 - 4.0);
}

TEST_CASE("an overflow before gradients were dropped still lowers the scale", "[n2]") {
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  GradScaler scaler({.init_scale = 8.0});
  scaler.scale(toy.loss(ronde::rank() == 0 ? kTooLarge : 1.0)).backward();
  scaler.unscale_(optimizer);
  optimizer.zero_grad();
  scaler.scale(toy.loss(1.0)).backward();
  CHECK(scaler.step(optimizer));
  scaler.update();
  CHECK(scaler.get_scale() == 4.0);
}

TEST_CASE("a step that failed can be tried again with other gradients", "[n2]") {
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names, {.find_nonfinite = true});
  GradScaler scaler({.init_scale = 8.0});
  scaler.scale(toy.loss(ronde::rank() == 0 ? kTooLarge : 1.0)).backward();
  CHECK_THROWS_AS(scaler.step(optimizer), ronde::Error);
  optimizer.zero_grad();
  scaler.scale(toy.loss(1.0)).backward();
  CHECK(scaler.step(optimizer));
  toy.check_values(0.0);
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
      hold_back(ronde::rank() == 1 ? kTooLarge : 1.0);
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

TEST_CASE("a scaler asks the ranks of the optimiser alone, if it is not told of more", "[n2]") {
  const ronde::ProcessSet first = ronde::add_process_set({0});
  if (ronde::rank() == 0) {
    Toy toy;
    DistributedOptimizer optimizer(toy.sgd, toy.names, {.process_set = first});
    GradScaler scaler;
    scaler.scale(toy.loss(1.0)).backward();
    CHECK(scaler.step(optimizer));
  }
  ronde::remove_process_set(first);
}

TEST_CASE("ranks whose optimisers have other names share a scale", "[n2][n3]") {
  const SetsOfOne sets;
  Toy first;
  Toy second;
  const std::string shard = "shard" + std::to_string(ronde::rank());
  DistributedOptimizer one(first.sgd, first.names,
                           {.name = shard + "a", .process_set = sets.mine()});
  DistributedOptimizer two(second.sgd, second.names,
                           {.name = shard + "b", .process_set = sets.mine()});
  GradScaler scaler({.init_scale = 8.0, .process_set = ronde::kGlobalSet});
  scaler.scale(first.loss(1.0) + second.loss(ronde::rank() == 1 ? kTooLarge : 1.0)).backward();
  CHECK(scaler.step(one));
  CHECK_FALSE(scaler.step(two));
  scaler.update();
  CHECK(scaler.get_scale() == 4.0);
}

TEST_CASE("where the gradients of one set fail, all ranks that share the scale hear of it",
          "[n2][n3]") {
  const SetsOfOne sets;
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names,
                                 {.process_set = sets.mine(), .find_nonfinite = true});
  GradScaler scaler({.init_scale = 8.0, .process_set = ronde::kGlobalSet});
  scaler.scale(toy.loss(ronde::rank() == 1 ? kTooLarge : 1.0)).backward();
  check_refused([&] { scaler.step(optimizer); },
                {ronde::rank() == 1 ? "not finite" : "share the scale"});
  optimizer.zero_grad();
  scaler.scale(toy.loss(1.0)).backward();
  CHECK(scaler.step(optimizer));
  toy.check_values(0.0);
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
  auto archive = saved(scaler);
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
