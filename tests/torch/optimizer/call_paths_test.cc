// SPDX-License-Identifier: Apache-2.0
// What goes wrong on one rank alone, by whichever call it comes to light: no rank waits for it, and
// none goes on alone.
#include <optional>

#include "tests/torch/optimizer/failing.h"

namespace ronde_test::call_paths_test {

using ronde::DistributedOptimizer;
using ronde::ReduceOp;

namespace {

/// The calls by which a rank learns that its optimizer has gained a parameter.
struct Path {
  std::string calls;
  bool after_synchronize = false;  // gradients are reduced before the parameter is gained
  bool scales = true;              // the scaler is on

  bool has(const std::string& call) const { return contains(calls, call); }
  /// A scaler has the ranks ask each other, also where gradients are averaged.
  bool asks_ranks() const { return scales && (has("scaler") || has("unscale_")); }
};

const std::vector<Path> kPaths = {{"step"},
                                  {"synchronize, step"},
                                  {"synchronize, scaler"},
                                  {"scaler"},
                                  {"unscale_"},
                                  {.calls = "unscale_", .scales = false},
                                  {.calls = "step", .after_synchronize = true},
                                  {.calls = "synchronize, step", .after_synchronize = true},
                                  {.calls = "scaler", .after_synchronize = true}};

/// All that the calls throw, one after the other.
std::string thrown_by(const Path& path, DistributedOptimizer& optimizer) {
  ronde::GradScaler scaler({.init_scale = 1.0, .enabled = path.scales});
  std::string text;
  if (path.has("synchronize")) text += thrown_text([&] { optimizer.synchronize(); });
  if (path.has("unscale_")) text += thrown_text([&] { scaler.unscale_(optimizer); });
  if (path.has("scaler")) text += thrown_text([&] { scaler.step(optimizer); });
  if (path.has("step")) text += thrown_text([&] { optimizer.step(); });
  return text;
}

}  // namespace

TEST_CASE("a parameter that one rank alone gained leaves no rank waiting, by each call path",
          "[n2][n3]") {
  for (const Path& path : kPaths) {
    for (const bool deltas : {true, false}) {
      CAPTURE(path.calls, path.after_synchronize, path.scales, deltas);
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
      const bool fails = ronde::rank() == 1 || deltas || path.asks_ranks();
      if (fails) {
        CHECK_FALSE(text.empty());
        toy.check_values(1.0);
      }
      if (fails && !deltas && ronde::rank() != 1) {
        CHECK(contains(text, "gradients were not reduced on some of the ranks"));
      }
      if (deltas && path.calls == "step" && !path.after_synchronize) {
        check_told(text, "add_parameters()");
      }
      if (ronde::rank() == 1) toy.sgd.param_groups().pop_back();
      if (!deltas && !path.asks_ranks() && path.has("step")) {
        // The others have stepped alone, of which all are told in the next step.
        optimizer.zero_grad();
        toy.backward(1.0);
        check_refused([&] { optimizer.step(); }, {"rank 1 has \"0 steps in"});
        ronde::broadcast_parameters(toy.names);
      }
      const at::Tensor before = toy.p.detach().clone();
      optimizer.zero_grad();
      toy.backward(deltas ? 1.0 : ronde::rank());
      optimizer.step();
      CHECK(near(toy.p, before - (deltas ? 1.0 : mean_rank()), 1e-14));
    }
  }
}

TEST_CASE("a gradient that a scaler cannot divide on one rank is divided on none", "[n2][n3]") {
  enum class When { Reducing, Reduced, Skipping };
  const std::vector<std::pair<std::string, at::Tensor>> rows = {
      {"share one memory location", full({1, 1}, 1).expand({3, 3})},
      {"", at::eye(3, at::kDouble).to_sparse_csr()}};  // in LibTorch's words
  for (const auto& [part, gradient] : rows) {
    for (const When when : {When::Reducing, When::Reduced, When::Skipping}) {
      CAPTURE(part, static_cast<int>(when));
      const at::Tensor own = at::eye(3, at::kDouble).requires_grad_();
      Toy toy;
      toy.names.insert("own", own);
      torch::optim::SGD sgd(toy.names.values(), 1.0);
      DistributedOptimizer optimizer(sgd, toy.names,
                                     {.local_parameters = {own}, .scale_local_gradients = false});
      ronde::GradScaler scaler({.init_scale = 1.0});
      std::optional<DistributedOptimizer::NoSync> held_back;
      std::optional<DistributedOptimizer::SkipSynchronize> skip;
      if (when == When::Skipping) held_back.emplace(optimizer.no_sync());
      toy.backward(1.0);
      held_back.reset();
      if (when == When::Reduced) optimizer.synchronize();
      if (when == When::Skipping) skip.emplace(optimizer.skip_synchronize());
      if (ronde::rank() == 1) own.mutable_grad() = gradient;
      if (ronde::rank() == 1 || when == When::Reducing) {
        const std::string text = thrown_text([&] { scaler.step(optimizer); });
        CHECK_FALSE(text.empty());
        check_contains(text, {part});
      } else {
        CHECK_FALSE(scaler.step(optimizer));  // to the others it is an overflow
      }
      CHECK(torch::equal(toy.p, full({4}, 1)));
      own.mutable_grad().reset();
      skip.reset();
      scaler.update(1.0);
      optimizer.zero_grad();
      toy.backward(1.0);
      CHECK(scaler.step(optimizer));
      CHECK(near(toy.p, full({4}, 0), 1e-14));
    }
  }
}

}  // namespace ronde_test::call_paths_test
