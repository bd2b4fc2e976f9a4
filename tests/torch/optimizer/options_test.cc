// SPDX-License-Identifier: Apache-2.0
// Options of DistributedOptimizer one by one: what the table of pairs does not have.
#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "tests/torch/layouts.h"
#include "tests/torch/toy.h"

namespace ronde_test::options_test {
namespace {

struct LbfgsCase {
  std::string name;
  std::optional<std::string> line_search;
  DistributedOptimizerOptions options;
};

torch::optim::LBFGSOptions lbfgs_options(const LbfgsCase& row) {
  return torch::optim::LBFGSOptions(0.3).max_iter(8).history_size(5).line_search_fn(
      row.line_search);
}

constexpr int kLbfgsSteps = 4;

/// Returns the parameters and the last loss of one process with the whole batch.
std::pair<at::Tensor, double> lbfgs_whole(const LbfgsCase& row) {
  Regression regression;
  torch::optim::LBFGS lbfgs(regression.parameters(), lbfgs_options(row));
  at::Tensor loss;
  for (int step = 0; step < kLbfgsSteps; ++step) {
    loss = lbfgs.step([&] {
      lbfgs.zero_grad();
      const at::Tensor mean = regression.whole_loss(0);
      mean.backward();
      return mean;
    });
  }
  return {flatten(regression.parameters()), loss.item<double>()};
}

TEST_CASE("LBFGS on N ranks equals one process, with and without line search") {
  const std::vector<LbfgsCase> rows = {
      {"plain", std::nullopt, {}},
      {"line search", "strong_wolfe", {}},
      {"sum", "strong_wolfe", {.op = ReduceOp::Sum, .prescale = 1.0 / ronde::size()}}};
  for (const LbfgsCase& row : rows) {
    CAPTURE(row.name);
    Regression regression;
    torch::optim::LBFGS lbfgs(regression.parameters(), lbfgs_options(row));
    DistributedOptimizer optimizer(lbfgs, regression.names(), row.options);
    // Without a closure it is refused before anything is waited for.
    regression.loss(0).backward();
    check_refused([&] { optimizer.step(); }, {"closure"});
    optimizer.synchronize();
    at::Tensor last;
    for (int step = 0; step < kLbfgsSteps; ++step) {
      last = optimizer.step([&] {
        // Either zero_grad() will do.
        if (step % 2 == 0) {
          optimizer.zero_grad();
        } else {
          lbfgs.zero_grad();
        }
        const at::Tensor mine = regression.loss(0);
        mine.backward();
        return mine;
      });
    }
    const auto [expected, expected_loss] = lbfgs_whole(row);
    CHECK(near(flatten(regression.parameters()), expected, 1e-7));
    CHECK(last.item<double>() == Approx(expected_loss).epsilon(1e-7));
    CHECK(same_on_all_ranks(flatten(regression.parameters())));
    CHECK_FALSE(near(expected, flatten(Regression().parameters()), 1e-2));
  }
}

TEST_CASE("200 steps of LBFGS leave the same bits, also halves on the wire", "[n2][n3]") {
  for (const auto& compression :
       {std::shared_ptr<Compression>(), Compression::fp16(), Compression::bf16()}) {
    CAPTURE(compression ? compression->description() : "none");
    Regression regression(at::kFloat);
    // On rows that nobody learns from.
    const auto unseen_loss = [&] { return regression.loss(-50).item<double>(); };
    const double before = unseen_loss();
    // Every rank has to take as many evaluations: what it decides by is the mean loss.
    torch::optim::LBFGS lbfgs(
        regression.parameters(),
        torch::optim::LBFGSOptions(0.5).max_iter(3).history_size(4).line_search_fn("strong_wolfe"));
    DistributedOptimizer optimizer(lbfgs, regression.names(), {.compression = compression});
    for (int step = 0; step < 200; ++step) {
      optimizer.step([&] {
        optimizer.zero_grad();
        const at::Tensor loss = regression.loss(step);
        loss.backward();
        return loss;
      });
    }
    CHECK(unseen_loss() < before / 2);
    CHECK(same_on_all_ranks(flatten(regression.parameters())));
  }
}

TEST_CASE("backward passes can be others from step to step, and fewer than announced", "[n2]") {
  WrappedToy toy;
  for (const auto& [announced, passes] : {std::pair(1, 1), {3, 1}, {3, 3}, {2, 2}}) {
    toy.optimizer.set_backward_passes_per_step(announced);
    toy.optimizer.zero_grad();
    for (int pass = 0; pass < passes; ++pass) toy.backward(ronde::rank() + 1.0);
    if (passes == announced) {
      check_refused([&] { toy.optimizer.set_backward_passes_per_step(1); },
                    {"set_backward_passes_per_step() was called"});
    }
    toy.optimizer.synchronize();
    toy.check_gradients(passes * (mean_rank() + 1.0));
    toy.optimizer.step();
  }
  check_refused([&] { toy.optimizer.set_backward_passes_per_step(0); }, {"at least 1"});
}

TEST_CASE("skip_synchronize steps with the gradients as they are", "[n2][own]") {
  setenv("RONDE_CHECK_REPLICAS", "off", 1);  // the ranks step apart
  use_ronde();
  WrappedToy toy;
  const auto hold_back = [&](double gradient) {
    const auto unsent = toy.optimizer.no_sync();
    toy.backward(gradient);
  };
  hold_back(ronde::rank() + 1.0);
  {
    auto outer = toy.optimizer.skip_synchronize();
    const auto moved = std::move(outer);
    check_refused([&] { toy.optimizer.synchronize(); },
                  {"synchronize() was called within skip_synchronize()"});
    toy.optimizer.step();
  }
  toy.check_values(1.0 - (ronde::rank() + 1.0));  // a step of this rank alone
  toy.optimizer.zero_grad();
  hold_back(ronde::rank());
  toy.optimizer.synchronize();
  toy.check_gradients(mean_rank());
  {
    const auto skip = toy.optimizer.skip_synchronize();
    toy.optimizer.synchronize();
    toy.check_gradients(mean_rank());
    toy.optimizer.step();
  }
  toy.optimizer.zero_grad();
  toy.backward(1.0);
  {
    const auto skip = toy.optimizer.skip_synchronize();
    check_refused([&] { toy.optimizer.step(); }, {"skip_synchronize()"});
  }
  toy.optimizer.step();
  toy.check_gradients(1.0);
}

// As of a captured CUDA graph (docs/gpu.md), which writes gradients where it did when it was
// captured.
TEST_CASE("step submits gradients that nothing but their memory shows", "[n2][n3]") {
  WrappedToy toy({}, 1.0, {"a", "b"});
  {
    const auto no_sync = toy.optimizer.no_sync();
    toy.backward(0.0);
  }
  double expected = 1;  // parameters begin as ones
  for (const double step : {2.0, 3.0, 5.0}) {
    for (const auto& item : toy.names) item.value().grad().fill_(step * (ronde::rank() + 1));
    toy.optimizer.step();
    expected -= step * (mean_rank() + 1);
    toy.check_values(expected);
  }
}

TEST_CASE("a rank without a gradient takes no part in a minimum, maximum or product", "[n2][n3]") {
  constexpr std::int64_t kCount = 16;
  for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Max, ReduceOp::Product}) {
    // Zeros would change the result: values are positive, or negative for the maximum.
    const double sign = op == ReduceOp::Max ? -1.0 : 1.0;
    const Tensors values =
        by_rank([&](int rank) { return sign * (normal({kCount}, 700 + rank).abs() + 0.5); });
    for (const int groups : {0, 1}) {
      for (int absent = 0; absent <= ronde::size(); ++absent) {
        CAPTURE(to_string(op), groups, absent);
        const at::Tensor p = ones_parameter({kCount});
        const at::Tensor unused = ones_parameter({kCount});
        auto optimizer = wrapped_sgd({{"p", p}, {"unused", unused}}, {.op = op, .groups = groups});
        if (ronde::rank() != absent) (p * mine_of(values)).sum().backward();
        optimizer.synchronize();
        Tensors present = values;
        if (absent < ronde::size()) present.erase(present.begin() + absent);
        REQUIRE(p.grad().defined());
        CHECK(near(p.grad(), reduced(op, at::stack(present)), 1e-14));
        CHECK_FALSE(unused.grad().defined());
      }
    }
  }
}

TEST_CASE("an optimizer that is kept by the wrapper lives as long", "[n2]") {
  const Toy toy;
  auto sgd = std::make_shared<torch::optim::SGD>(toy.names.values(), 1.0);
  const std::weak_ptr<torch::optim::SGD> watched = sgd;
  {
    DistributedOptimizer optimizer(std::move(sgd), toy.names);
    CHECK_FALSE(watched.expired());
    toy.backward(ronde::rank());
    optimizer.step();
  }
  CHECK(watched.expired());
  toy.check_values(1.0 - mean_rank());
  check_refused(
      [&] { DistributedOptimizer(std::shared_ptr<torch::optim::Optimizer>(), toy.names); },
      {"null"});
}

TEST_CASE("an inner optimizer that ends first leaves a wrapper that can be destroyed", "[n2]") {
  const Toy toy;
  {
    auto inner = std::make_unique<torch::optim::SGD>(toy.names.values(), 1.0);
    DistributedOptimizer optimizer(*inner, toy.names);
    toy.backward(ronde::rank() + 1.0);  // in flight; what arrives is nobody's
    inner.reset();
  }
  ronde::barrier();
  toy.p.mutable_grad().reset();
  toy.backward(1.0);
  toy.check_gradients(1.0);
}

TEST_CASE("steps of all types are combined by Adasum, also halves on the wire", "[n1][n2][n3]") {
  struct Row {
    at::ScalarType dtype;
    std::shared_ptr<Compression> compression;
    double tolerance;  // of numbers about 1
  };
  const auto fp16 = Compression::fp16();
  const auto bf16 = Compression::bf16();
  const std::vector<Row> rows = {
      {at::kDouble, nullptr, 1e-12}, {at::kFloat, nullptr, 1e-6},
      {at::kHalf, nullptr, 4e-3},    {at::kBFloat16, nullptr, 3e-2},
      {at::kDouble, fp16, 4e-3},     {at::kFloat, bf16, 3e-2},
      {at::kHalf, fp16, 4e-3},       {at::kComplexDouble, nullptr, 1e-12}};
  for (const auto& [dtype, compression, tolerance] : rows) {
    for (const bool of_deltas : {true, false}) {
      CAPTURE(at::toString(dtype), compression != nullptr, of_deltas);
      const at::Tensor p = at::zeros({40}, dtype).requires_grad_();
      // A complex gradient is combined as the vector of its parts.
      const at::Tensor parts = p.is_complex() ? at::view_as_real(p) : p;
      const Tensors gradients = by_rank(
          [&](int rank) { return normal(parts.sizes(), 60 + rank).to(parts.scalar_type()); });
      auto optimizer = wrapped_sgd(
          {{"p", p}},
          {.op = ReduceOp::Adasum, .adasum_of_deltas = of_deltas, .compression = compression});
      (parts * mine_of(gradients)).sum().backward();
      optimizer.step();
      CHECK(near(flatten({p}), -flatten({adasum(gradients)}), tolerance));
      CHECK(same_on_all_ranks(p));
    }
  }
}

TEST_CASE("where the step of one rank fails, no rank's step counts", "[n2][n3]") {
  class Failing : public torch::optim::SGD {
   public:
    using SGD::SGD;
    at::Tensor step(LossClosure closure = nullptr) override {
      const at::Tensor loss = SGD::step(std::move(closure));
      if (fails) throw std::runtime_error("the step fails");
      return loss;
    }
    bool fails = false;
  };
  Toy toy;
  const at::Tensor own = full({3}, 2.0).requires_grad_();
  toy.names.insert("own", own);
  Failing inner(toy.names.values(), 1.0);
  DistributedOptimizer optimizer(inner, toy.names,
                                 {.op = ReduceOp::Adasum, .local_parameters = {own}});
  for (const bool fails : {true, false}) {
    inner.fails = fails && ronde::rank() == 1;
    (toy.p.sum() + own.sum() * (ronde::rank() + 1.0)).backward();
    if (inner.fails) {
      CHECK_THROWS_WITH(optimizer.step(), "the step fails");
    } else if (fails) {
      CHECK_THROWS_AS(optimizer.step(), ronde::Error);
    } else {
      optimizer.step();
    }
    CHECK(near(toy.p, full({4}, fails ? 1.0 : 0.0), 1e-12));
    CHECK(near(own, full({3}, fails ? 2.0 : 1.0 - ronde::rank()), 1e-12));
    if (fails) check_refused([&] { optimizer.step(); }, {"Call zero_grad()"});
    optimizer.zero_grad();
  }
  check_refused([&] { static_cast<void>(optimizer.skip_synchronize()); }, {"Clip"});
}

}  // namespace
}  // namespace ronde_test::options_test
