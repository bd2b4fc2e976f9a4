// SPDX-License-Identifier: Apache-2.0
// What goes wrong on one rank alone, by whichever call it comes to light: no rank waits for it, and
// none goes on alone.
#include <string>

#include "failing.h"
#include "support.h"
#include "toy.h"

using namespace ronde_test;
using ronde::DistributedOptimizer;
using ronde::ReduceOp;

namespace {

/// Another parameter for `toy`, which its optimiser has from now on.
at::Tensor gain(Toy& toy) {
  const at::Tensor q = at::ones({4}, at::kDouble).requires_grad_();
  toy.sgd.add_param_group(
      torch::optim::OptimizerParamGroup({q}, std::make_unique<torch::optim::SGDOptions>(1.0)));
  return q;
}

/// By which calls a rank learns that its optimiser has gained a parameter. Late: once gradients are
/// reduced.
enum class Door {
  Step,
  Synchronize,
  SynchronizeAndScale,
  Scaler,
  Unscale,
  IdleScaler,
  LateStep,
  LateSynchronize,
  LateScaler
};
constexpr Door kDoors[] = {Door::Step,     Door::Synchronize,     Door::SynchronizeAndScale,
                           Door::Scaler,   Door::Unscale,         Door::IdleScaler,
                           Door::LateStep, Door::LateSynchronize, Door::LateScaler};

/// All that the door throws, behind one another.
std::string go_through(Door door, DistributedOptimizer& optimizer) {
  ronde::GradScaler scaler({.init_scale = 1.0, .enabled = door != Door::IdleScaler});
  std::string text;
  const auto attempt = [&text](const auto& part) { text += thrown_text(part); };
  switch (door) {
    case Door::Synchronize:
    case Door::LateSynchronize:
      attempt([&] { optimizer.synchronize(); });
      [[fallthrough]];
    case Door::Step:
    case Door::LateStep:
      attempt([&] { optimizer.step(); });
      break;
    case Door::Unscale:
    case Door::IdleScaler:
      attempt([&] { scaler.unscale_(optimizer); });
      break;
    case Door::SynchronizeAndScale:
      attempt([&] { optimizer.synchronize(); });
      [[fallthrough]];
    case Door::Scaler:
    case Door::LateScaler:
      attempt([&] { scaler.step(optimizer); });
      break;
  }
  return text;
}

/// Makes no state on rank 1 where it is told so.
class Choosy final : public ronde::Compression {
 public:
  std::string description() const override { return "choosy"; }
  std::unique_ptr<ronde::CompressedGradient> make(const std::string& name,
                                                  const at::Tensor&) override {
    if (name == refused && ronde::rank() == 1) throw std::runtime_error("no room for a factor");
    return nullptr;
  }
  std::string refused;
};

/// Steps, and then fails where it is told so.
class Tripping final : public torch::optim::SGD {
 public:
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    at::Tensor loss = SGD::step(std::move(closure));
    if (trips) throw std::runtime_error("tripped");
    return loss;
  }
  bool trips = false;
};

}  // namespace

TEST_CASE("a parameter that one rank alone gained fails the deltas of all, by each door",
          "[n2][n3]") {
  use_ronde();
  for (const Door door : kDoors) {
    CAPTURE(static_cast<int>(door));
    Toy toy;
    DistributedOptimizer optimizer(toy.sgd, toy.names, {.op = ReduceOp::Adasum});
    toy.backward(1.0);
    if (door >= Door::LateStep) optimizer.synchronize();
    if (ronde::rank() == 1) gain(toy);
    const std::string text = go_through(door, optimizer);
    CAPTURE(text);
    CHECK_FALSE(text.empty());
    if (ronde::rank() == 1) CHECK(contains(text, "has 2 parameters, but had 1"));
    CHECK(torch::equal(toy.p, at::ones({4}, at::kDouble)));
    if (ronde::rank() == 1) toy.sgd.param_groups().pop_back();
    optimizer.zero_grad();
    toy.backward(1.0);
    optimizer.step();
    CHECK(near(toy.p, at::zeros({4}, at::kDouble), 1e-14));
  }
}

TEST_CASE("a parameter that one rank alone gained leaves no rank waiting, by each door", "[n2]") {
  use_ronde();
  for (const Door door : kDoors) {
    CAPTURE(static_cast<int>(door));
    Toy toy;
    DistributedOptimizer optimizer(toy.sgd, toy.names);
    toy.backward(1.0);
    if (door >= Door::LateStep) optimizer.synchronize();
    if (ronde::rank() == 1) gain(toy);
    const std::string text = go_through(door, optimizer);
    CAPTURE(text);
    if (ronde::rank() == 1) {
      CHECK(contains(text, "has 2 parameters, but had 1"));
      CHECK(torch::equal(toy.p, at::ones({4}, at::kDouble)));
      toy.sgd.param_groups().pop_back();
    } else if (door == Door::Scaler || door == Door::Unscale || door == Door::LateScaler ||
               door == Door::SynchronizeAndScale) {
      // Where the ranks ask each other anyway.
      CHECK(contains(text, "gradients were not reduced on some of the ranks"));
      CHECK(torch::equal(toy.p, at::ones({4}, at::kDouble)));
    }
    optimizer.zero_grad();
    toy.backward(ronde::rank());
    optimizer.synchronize();
    toy.check_gradient(mean_rank());
  }
}

TEST_CASE("parameters are not added between synchronize() and step()", "[n2][n3]") {
  use_ronde();
  for (const bool deltas : {false, true}) {
    CAPTURE(deltas);
    Toy toy;
    DistributedOptimizer optimizer(toy.sgd, toy.names,
                                   {.op = deltas ? ReduceOp::Adasum : ReduceOp::Average});
    toy.backward(1.0);
    optimizer.synchronize();
    const at::Tensor q = gain(toy);
    toy.names.insert("q", q);
    // Its gradient is this rank's own.
    (q * static_cast<double>(ronde::rank())).sum().backward();
    const std::string text = usage_error([&] { optimizer.add_parameters(toy.names); });
    CAPTURE(text);
    CHECK(contains(text, "between synchronize() and step()"));
    CHECK(contains(usage_error([&] { optimizer.step(); }), "add_parameters()"));
    CHECK(torch::equal(q, at::ones({4}, at::kDouble)));
    CHECK(torch::equal(toy.p, at::ones({4}, at::kDouble)));
    optimizer.zero_grad();
    optimizer.add_parameters(toy.names);
    (toy.p + q).sum().backward();
    optimizer.step();
    CHECK(near(flatten({toy.p, q}), at::zeros({8}, at::kDouble), 1e-14));
  }
}

TEST_CASE("parameters are added on no rank while one has gradients in flight", "[n2]") {
  use_ronde();
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  if (ronde::rank() == 1) toy.backward(1.0);
  toy.names.insert("q", gain(toy));
  const std::string text = usage_error([&] { optimizer.add_parameters(toy.names); });
  CAPTURE(text);
  CHECK(contains(text, "add_parameters() was called while its gradient is being reduced"));
  CHECK(contains(usage_error([&] { optimizer.step(); }), "add_parameters()"));
  optimizer.add_parameters(toy.names);
  optimizer.zero_grad();
  toy.backward(ronde::rank());
  optimizer.synchronize();
  toy.check_gradient(mean_rank());
}

TEST_CASE("a compression that one rank cannot make is made on none", "[n2][n3]") {
  use_ronde();
  const auto choosy = std::make_shared<Choosy>();
  Three three;
  const auto check_told = [](const std::string& text) {
    CAPTURE(text);
    CHECK(contains(text, "no room for a factor"));
    CHECK(contains(text, "rank 1: ") == (ronde::rank() != 1));
  };
  for (const std::string name : {"a", "c"}) {
    choosy->refused = name;
    check_told(thrown_text(
        [&] { DistributedOptimizer optimizer(*three.sgd, three.names, {.compression = choosy}); }));
  }
  choosy->refused = "d";
  DistributedOptimizer optimizer(*three.sgd, three.names, {.compression = choosy});
  check_next_steps(three, optimizer);
  const at::Tensor d = Three::parameter();
  three.names.insert("d", d);
  three.sgd->add_param_group(
      torch::optim::OptimizerParamGroup({d}, std::make_unique<torch::optim::SGDOptions>(1.0)));
  optimizer.zero_grad();
  check_told(thrown_text([&] { optimizer.add_parameters(three.names); }));
  choosy->refused.clear();
  optimizer.add_parameters(three.names);
  check_next_steps(three, optimizer);
}

TEST_CASE("a gradient that cannot be written fails the step on all ranks, also with views",
          "[n2][n3]") {
  use_ronde();
  for (const bool views : {false, true}) {
    CAPTURE(views);
    Three three;
    DistributedOptimizer optimizer(*three.sgd, three.names, {.gradient_views = views});
    {
      const auto guard = optimizer.no_sync();
      three.backward(1.0);
    }
    if (ronde::rank() == 1) {
      three.names["b"].mutable_grad() = at::ones({1}, at::kDouble).expand({4});
    }
    const std::string text = usage_error([&] { optimizer.step(); });
    CAPTURE(text);
    CHECK(contains(text, "share one memory location"));
    CHECK(near(flatten(three.names.values()), at::ones({12}, at::kDouble), 0));
    three.names["b"].mutable_grad().reset();  // which LibTorch does not clear either
    check_next_steps(three, optimizer);
  }
}

TEST_CASE("a gradient that a scaler cannot divide on one rank is divided on none", "[n2][n3]") {
  use_ronde();
  for (const bool is_late : {false, true}) {
    CAPTURE(is_late);
    Toy toy;
    DistributedOptimizer optimizer(toy.sgd, toy.names, {.op = ReduceOp::Adasum});
    ronde::GradScaler scaler({.init_scale = 1.0});
    toy.backward(1.0);
    if (is_late) optimizer.synchronize();
    if (ronde::rank() == 1) {
      toy.p.mutable_grad() = at::ones({1}, at::kDouble).expand({4});
      CHECK(contains(usage_error([&] { scaler.step(optimizer); }), "share one memory location"));
      toy.p.mutable_grad().reset();
    } else if (is_late) {
      CHECK_FALSE(scaler.step(optimizer));  // to the others it is an overflow
    } else {
      CHECK(contains(usage_error([&] { scaler.step(optimizer); }), "share one memory location"));
    }
    CHECK(torch::equal(toy.p, at::ones({4}, at::kDouble)));
    scaler.update(1.0);
    optimizer.zero_grad();
    toy.backward(1.0);
    CHECK(scaler.step(optimizer));
    CHECK(near(toy.p, at::zeros({4}, at::kDouble), 1e-14));
  }
}

TEST_CASE("local parameters are as before a step of deltas that failed", "[n2][n3]") {
  use_ronde();
  Toy toy;
  const at::Tensor own = at::full({3}, 2.0, at::kDouble).requires_grad_();
  toy.names.insert("own", own);
  Tripping sgd(toy.names.values(), torch::optim::SGDOptions(1.0));
  DistributedOptimizer optimizer(sgd, toy.names,
                                 {.op = ReduceOp::Adasum, .local_parameters = {own}});
  const auto step = [&] {
    optimizer.zero_grad();
    (toy.p.sum() + own.sum() * (ronde::rank() + 1.0)).backward();
    optimizer.step();
  };
  sgd.trips = ronde::rank() == 1;
  CHECK_FALSE(thrown_text(step).empty());
  CHECK(torch::equal(toy.p, at::ones({4}, at::kDouble)));
  CHECK(torch::equal(own, at::full({3}, 2.0, at::kDouble)));
  sgd.trips = false;
  step();
  CHECK(near(toy.p, at::zeros({4}, at::kDouble), 1e-14));
  CHECK(near(own, at::full({3}, 1.0 - ronde::rank(), at::kDouble), 1e-14));
}
