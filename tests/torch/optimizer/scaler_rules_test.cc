// SPDX-License-Identifier: Apache-2.0
// What a GradScaler does where gradients are dropped, scales differ, or steps fail.
#include <limits>
#include <sstream>

#include "support.h"
#include "toy.h"

using namespace ronde_test;
using ronde::DistributedOptimizer;
using ronde::GradScaler;

namespace {

constexpr double kTooLarge = std::numeric_limits<double>::infinity();

/// p after gradients whose mean is `sum` in all.
at::Tensor after(double sum) {
  return at::full({4}, 1.0 - sum, at::kDouble);
}

}  // namespace

TEST_CASE("gradients that were dropped after unscale_ leave nothing to the next", "[n1][n2]") {
  use_ronde();
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  GradScaler scaler({.init_scale = 1024.0});
  scaler.scale((toy.p * 3.0).sum()).backward();
  scaler.unscale_(optimizer);
  toy.check_gradient(3.0);
  optimizer.zero_grad();
  scaler.scale((toy.p * 2.0).sum()).backward();
  CHECK(scaler.step(optimizer));
  CHECK(near(toy.p, after(2.0), 1e-12));
  scaler.update();
  // An optimiser that may have the other's place in memory.
  auto other = std::make_unique<DistributedOptimizer>(std::move(optimizer));
  scaler.scale((toy.p * 2.0).sum()).backward();
  scaler.unscale_(*other);
  other = nullptr;
  toy.sgd.zero_grad();
  other = std::make_unique<DistributedOptimizer>(toy.sgd, toy.names);
  scaler.scale((toy.p * 2.0).sum()).backward();
  CHECK(scaler.step(*other));
  CHECK(near(toy.p, after(4.0), 1e-12));
}

TEST_CASE("an overflow before gradients were dropped still lowers the scale", "[n2]") {
  use_ronde();
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  GradScaler scaler({.init_scale = 8.0});
  scaler.scale((toy.p * (ronde::rank() == 0 ? kTooLarge : 1.0)).sum()).backward();
  scaler.unscale_(optimizer);
  optimizer.zero_grad();
  scaler.scale(toy.p.sum()).backward();
  CHECK(scaler.step(optimizer));
  scaler.update();
  CHECK(scaler.get_scale() == 4.0);
}

TEST_CASE("a step that failed can be tried again with other gradients", "[n2]") {
  use_ronde();
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names, {.find_nonfinite = true});
  GradScaler scaler({.init_scale = 8.0});
  scaler.scale((toy.p * (ronde::rank() == 0 ? kTooLarge : 1.0)).sum()).backward();
  CHECK_THROWS_AS(scaler.step(optimizer), ronde::Error);
  optimizer.zero_grad();
  scaler.scale(toy.p.sum()).backward();
  CHECK(scaler.step(optimizer));
  CHECK(near(toy.p, after(1.0), 1e-12));
}

TEST_CASE("ranks whose scales differ hear of it", "[n2][n3]") {
  use_ronde();
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  GradScaler scaler({.init_scale = ronde::rank() == 1 ? 4.0 : 8.0});
  scaler.scale(toy.p.sum()).backward();
  const std::string text = usage_error([&] { scaler.step(optimizer); });
  CAPTURE(text);
  const std::string own = ronde::rank() == 1 ? "4" : "8";
  CHECK(contains(text, "rank " + std::to_string(ronde::rank()) + ": ronde::GradScaler: "));
  CHECK(contains(text, "from 4 to 8; this rank's is " + own + ". "));
  CHECK(contains(text, "load()"));
  optimizer.zero_grad();
  scaler.update(2.0);
  scaler.scale(toy.p.sum()).backward();
  CHECK(scaler.step(optimizer));
}

TEST_CASE("within skip_synchronize a scaler takes gradients as they are, on or off", "[n2]") {
  use_ronde();
  for (const bool enabled : {true, false}) {
    CAPTURE(enabled);
    Toy toy;
    DistributedOptimizer optimizer(toy.sgd, toy.names);
    GradScaler scaler({.init_scale = 8.0, .enabled = enabled});
    const auto guard = optimizer.skip_synchronize();
    const double own = ronde::rank() + 1.0;
    {
      const auto alone = optimizer.no_sync();
      scaler.scale((toy.p * own).sum()).backward();
    }
    scaler.unscale_(optimizer);
    toy.check_gradient(own);
    CHECK(scaler.step(optimizer));
    CHECK(near(toy.p, after(own), 1e-12));
  }
}

TEST_CASE("a scaler asks the ranks of the optimiser alone, if it is not told of more", "[n2]") {
  use_ronde();
  const ronde::ProcessSet first = ronde::add_process_set({0});
  if (ronde::rank() == 0) {
    Toy toy;
    DistributedOptimizer optimizer(toy.sgd, toy.names, {.process_set = first});
    GradScaler scaler;
    scaler.scale(toy.p.sum()).backward();
    CHECK(scaler.step(optimizer));
  }
  ronde::barrier();
}

TEST_CASE("ranks whose optimisers have other names share a scale", "[n2][n3]") {
  use_ronde();
  std::vector<ronde::ProcessSet> sets;
  for (int rank = 0; rank < ronde::size(); ++rank) sets.push_back(ronde::add_process_set({rank}));
  Toy first;
  Toy second;
  const auto own = sets[static_cast<std::size_t>(ronde::rank())];
  const std::string shard = "shard" + std::to_string(ronde::rank());
  DistributedOptimizer one(first.sgd, first.names, {.name = shard + "a", .process_set = own});
  DistributedOptimizer two(second.sgd, second.names, {.name = shard + "b", .process_set = own});
  GradScaler scaler({.init_scale = 8.0, .process_set = ronde::kGlobalSet});
  const double factor = ronde::rank() == 1 ? kTooLarge : 1.0;
  scaler.scale(first.p.sum() + (second.p * factor).sum()).backward();
  CHECK(scaler.step(one));
  CHECK_FALSE(scaler.step(two));
  scaler.update();
  CHECK(scaler.get_scale() == 4.0);
}

TEST_CASE("where the gradients of one set fail, all ranks that share the scale hear of it",
          "[n2][n3]") {
  use_ronde();
  std::vector<ronde::ProcessSet> sets;
  for (int rank = 0; rank < ronde::size(); ++rank) sets.push_back(ronde::add_process_set({rank}));
  Toy toy;
  DistributedOptimizer optimizer(
      toy.sgd, toy.names,
      {.process_set = sets[static_cast<std::size_t>(ronde::rank())], .find_nonfinite = true});
  GradScaler scaler({.init_scale = 8.0, .process_set = ronde::kGlobalSet});
  for (const bool fails : {true, false}) {
    const double factor = fails && ronde::rank() == 1 ? kTooLarge : 1.0;
    scaler.scale((toy.p * factor).sum()).backward();
    if (!fails) {
      CHECK(scaler.step(optimizer));
      continue;
    }
    const std::string text = usage_error([&] { scaler.step(optimizer); });
    CAPTURE(text);
    CHECK(contains(text, ronde::rank() == 1 ? "not finite" : "share the scale"));
    optimizer.zero_grad();
  }
  CHECK(near(toy.p, after(1.0), 1e-12));
}

TEST_CASE("a scale as small as can be is said not to be the reason", "[n1]") {
  use_ronde();
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  GradScaler scaler({.init_scale = 1e-37});
  CHECK(contains(usage_error([&] { scaler.update(1e-300); }), "between"));
  std::string text;
  for (int step = 0; step < 5 && text.empty(); ++step) {
    optimizer.zero_grad();
    scaler.scale((toy.p * kTooLarge).sum()).backward();
    CHECK_FALSE(scaler.step(optimizer));
    if (scaler.get_scale() > 2.4e-38) {
      scaler.update();
    } else {
      text = usage_error([&] { scaler.update(); });
    }
  }
  CHECK(contains(text, "find_nonfinite"));
}

TEST_CASE("a scale that was set counts its steps anew", "[n1]") {
  use_ronde();
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  GradScaler scaler({.init_scale = 8.0, .growth_interval = 2});
  const auto step = [&](std::optional<double> scale) {
    optimizer.zero_grad();
    scaler.scale(toy.p.sum()).backward();
    scaler.step(optimizer);
    scaler.update(scale);
    return scaler.get_scale();
  };
  CHECK(step({}) == 8.0);
  CHECK(step(4.0) == 4.0);
  CHECK(step({}) == 4.0);
  CHECK(step({}) == 8.0);
}

TEST_CASE("a scaler refuses optimisers that it cannot serve", "[n1][n2]") {
  use_ronde();
  Toy toy;
  torch::optim::LBFGS lbfgs({toy.p}, 1.0);
  DistributedOptimizer closures(lbfgs, toy.names);
  GradScaler scaler;
  CHECK(contains(usage_error([&] { scaler.step(closures); }), "LBFGS"));
  CHECK(contains(usage_error([&] { scaler.unscale_(closures); }), "LBFGS"));
}

TEST_CASE("a scaler notices parameters that nobody reduces", "[n1][n2]") {
  use_ronde();
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  const at::Tensor later = at::ones({2}, at::kDouble).requires_grad_();
  toy.sgd.add_param_group(std::vector<at::Tensor>{later});
  GradScaler scaler;
  scaler.scale(toy.p.sum() + later.sum()).backward();
  CHECK(contains(usage_error([&] { scaler.step(optimizer); }), "add_parameters()"));
  CHECK(near(toy.p, after(0.0), 0));
}

TEST_CASE("a state that counts backwards is none of a scaler", "[n1]") {
  torch::serialize::OutputArchive wrong;
  wrong.write("scale", c10::IValue(8.0));
  wrong.write("steps_since_change", c10::IValue(-1));
  std::ostringstream written;
  wrong.save_to(written);
  std::istringstream stream(written.str());
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  GradScaler scaler({.init_scale = 2.0});
  CHECK(contains(usage_error([&] { scaler.load(archive); }), "no GradScaler"));
  CHECK(scaler.get_scale() == 2.0);
}
