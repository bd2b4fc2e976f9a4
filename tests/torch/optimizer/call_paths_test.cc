// SPDX-License-Identifier: Apache-2.0
// What goes wrong on one rank alone, by whichever call it comes to light: no rank waits for it, and
// none goes on alone.
#include <string>

#include "failing.h"
#include "toy.h"

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

TEST_CASE("parameters are not added between synchronize() and step()", "[n2][n3]") {
  for (const bool deltas : {false, true}) {
    CAPTURE(deltas);
    Toy toy;
    DistributedOptimizer optimizer(toy.sgd, toy.names,
                                   {.op = deltas ? ReduceOp::Adasum : ReduceOp::Average});
    toy.backward(1.0);
    optimizer.synchronize();
    const at::Tensor q = toy.add("q");
    // Its gradient is this rank's own.
    (q * static_cast<double>(ronde::rank())).sum().backward();
    check_refused([&] { optimizer.add_parameters(toy.names); },
                  {"between synchronize() and step()"});
    check_refused([&] { optimizer.step(); }, {"add_parameters()"});
    toy.check_values(1.0);
    optimizer.zero_grad();
    optimizer.add_parameters(toy.names);
    toy.backward(1.0);
    optimizer.step();
    toy.check_values(0.0);
  }
}

TEST_CASE("parameters are added on no rank while one has gradients in flight", "[n2]") {
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  if (ronde::rank() == 1) toy.backward(1.0);
  toy.add("q");
  check_refused([&] { optimizer.add_parameters(toy.names); },
                {"add_parameters() was called while its gradient is being reduced"});
  check_refused([&] { optimizer.step(); }, {"add_parameters()"});
  optimizer.add_parameters(toy.names);
  check_next_steps(toy, optimizer);
}

TEST_CASE("a compression that one rank cannot make is made on none", "[n2][n3]") {
  const auto choosy = std::make_shared<Choosy>();
  Toy toy(1.0, {"a", "b", "c"});
  for (const std::string name : {"a", "c"}) {
    choosy->refused = name;
    check_told(thrown_text([&] {
                 DistributedOptimizer optimizer(toy.sgd, toy.names, {.compression = choosy});
               }),
               "no room for a factor");
  }
  choosy->refused = "d";
  DistributedOptimizer optimizer(toy.sgd, toy.names, {.compression = choosy});
  check_next_steps(toy, optimizer);
  toy.add("d");
  optimizer.zero_grad();
  check_told(thrown_text([&] { optimizer.add_parameters(toy.names); }), "no room for a factor");
  choosy->refused.clear();
  optimizer.add_parameters(toy.names);
  check_next_steps(toy, optimizer);
}

TEST_CASE("a gradient that cannot be written fails the step on all ranks, also with views",
          "[n2][n3]") {
  for (const bool views : {false, true}) {
    CAPTURE(views);
    Toy toy(1.0, {"a", "b", "c"});
    DistributedOptimizer optimizer(toy.sgd, toy.names, {.gradient_views = views});
    {
      const auto guard = optimizer.no_sync();
      toy.backward(1.0);
    }
    at::Tensor b = toy.names["b"];
    if (ronde::rank() == 1) b.mutable_grad() = full({1}, 1).expand({4});
    check_refused([&] { optimizer.step(); }, {"share one memory location"});
    toy.check_values(1.0);
    b.mutable_grad().reset();  // which LibTorch does not clear either
    check_next_steps(toy, optimizer);
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
