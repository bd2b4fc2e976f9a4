// SPDX-License-Identifier: Apache-2.0
// What goes wrong on one rank alone, by whichever call it comes to light: no rank waits for it, and
// none goes on alone.
#include "failing.h"

namespace ronde_test::call_paths_test {

using ronde::DistributedOptimizer;
using ronde::ReduceOp;

namespace {

/// The calls by which a rank learns that its optimizer has gained a parameter.
struct Path {
  std::string name;
  bool after_synchronize;  // gradients are reduced before the parameter is gained
  std::vector<std::function<void(DistributedOptimizer&, ronde::GradScaler&)>> calls;
  bool asks_ranks;  // the ranks ask each other, also where gradients are averaged
  bool scales = true;
};

const std::vector<Path>& paths() {
  using Scaler = ronde::GradScaler;
  const auto synchronize = [](DistributedOptimizer& optimizer, Scaler&) {
    optimizer.synchronize();
  };
  const auto step = [](DistributedOptimizer& optimizer, Scaler&) { optimizer.step(); };
  const auto scaled = [](DistributedOptimizer& optimizer, Scaler& scaler) {
    scaler.step(optimizer);
  };
  const auto unscale = [](DistributedOptimizer& optimizer, Scaler& scaler) {
    scaler.unscale_(optimizer);
  };
  static const std::vector<Path> all = {
      {"step", false, {step}, false},
      {"synchronize, step", false, {synchronize, step}, false},
      {"synchronize, scaler", false, {synchronize, scaled}, true},
      {"scaler", false, {scaled}, true},
      {"unscale_", false, {unscale}, true},
      {"unscale_ of a scaler that is off", false, {unscale}, false, false},
      {"late step", true, {step}, false},
      {"late synchronize, step", true, {synchronize, step}, false},
      {"late scaler", true, {scaled}, true},
  };
  return all;
}

/// All that the calls throw, one after the other.
std::string thrown_by(const Path& path, DistributedOptimizer& optimizer) {
  ronde::GradScaler scaler({.init_scale = 1.0, .enabled = path.scales});
  std::string text;
  for (const auto& call : path.calls) {
    text += thrown_text([&] { call(optimizer, scaler); });
  }
  return text;
}

}  // namespace

TEST_CASE("a parameter that one rank alone gained leaves no rank waiting, by each call path",
          "[n2][n3]") {
  for (const Path& path : paths()) {
    for (const bool deltas : {true, false}) {
      CAPTURE(path.name, deltas);
      Toy toy;
      DistributedOptimizer optimizer(toy.sgd, toy.names,
                                     {.op = deltas ? ReduceOp::Adasum : ReduceOp::Average});
      toy.backward(1.0);
      if (path.after_synchronize) optimizer.synchronize();
      const Names names = toy.names;
      if (ronde::rank() == 1) toy.add("q");
      toy.names = names;  // those of the optimizer differ
      const std::string text = thrown_by(path, optimizer);
      CAPTURE(text);
      if (ronde::rank() == 1) CHECK(contains(text, "has 2 parameters, but had 1"));
      // Steps of deltas fail on all ranks; averages do where the ranks ask each other anyway.
      const bool fails = ronde::rank() == 1 || deltas || path.asks_ranks;
      if (fails) {
        CHECK_FALSE(text.empty());
        toy.check_values(1.0);
      }
      if (fails && !deltas && ronde::rank() != 1) {
        CHECK(contains(text, "gradients were not reduced on some of the ranks"));
      }
      if (ronde::rank() == 1) toy.sgd.param_groups().pop_back();
      const at::Tensor before = toy.p.detach().clone();
      optimizer.zero_grad();
      toy.backward(deltas ? 1.0 : ronde::rank());
      optimizer.step();
      CHECK(near(toy.p, before - (deltas ? 1.0 : mean_rank()), 1e-14));
    }
  }
}

TEST_CASE("a gradient that a scaler cannot divide on one rank is divided on none", "[n2][n3]") {
  for (const bool is_late : {false, true}) {
    CAPTURE(is_late);
    Toy toy;
    DistributedOptimizer optimizer(toy.sgd, toy.names, {.op = ReduceOp::Adasum});
    ronde::GradScaler scaler({.init_scale = 1.0});
    toy.backward(1.0);
    if (is_late) optimizer.synchronize();
    if (ronde::rank() == 1) toy.p.mutable_grad() = full({1}, 1).expand({4});
    if (is_late && ronde::rank() != 1) {
      CHECK_FALSE(scaler.step(optimizer));  // to the others it is an overflow
    } else {
      check_refused([&] { scaler.step(optimizer); }, {"share one memory location"});
    }
    if (ronde::rank() == 1) toy.p.mutable_grad().reset();
    toy.check_values(1.0);
    scaler.update(1.0);
    optimizer.zero_grad();
    toy.backward(1.0);
    CHECK(scaler.step(optimizer));
    toy.check_values(0.0);
  }
}

}  // namespace ronde_test::call_paths_test
