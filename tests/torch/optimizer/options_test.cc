// SPDX-License-Identifier: Apache-2.0
// Options of DistributedOptimizer one by one: what the table of pairs does not have.
#include <algorithm>
#include <vector>

#include "support.h"
#include "toy.h"

using namespace ronde_test;
using ronde::DistributedOptimizer;

namespace {

using Names = torch::OrderedDict<std::string, at::Tensor>;

constexpr std::int64_t kRows = 8;

at::Tensor rows_of(int rank) {
  return normal({kRows, 4}, 300 + static_cast<std::uint64_t>(rank));
}

/// A regression that is not quadratic.
struct Problem {
  Problem() {
    const torch::NoGradGuard no_grad;
    net->to(at::kDouble);
    std::uint64_t seed = 40;
    for (auto& parameter : net->parameters()) parameter.copy_(normal(parameter.sizes(), seed++));
  }

  at::Tensor loss(int rank) {
    const at::Tensor x = rows_of(rank);
    return torch::mse_loss(net->forward(x), torch::sin(x.sum(1, true)));
  }

  torch::nn::Sequential net{torch::nn::Linear(4, 6), torch::nn::Tanh(), torch::nn::Linear(6, 1)};
};

torch::optim::LBFGSOptions lbfgs_options(const std::optional<std::string>& line_search) {
  return torch::optim::LBFGSOptions(0.3).max_iter(8).history_size(5).line_search_fn(line_search);
}

/// What one process with the whole batch comes to, and its last loss.
std::pair<at::Tensor, double> lbfgs_whole(const std::optional<std::string>& line_search,
                                          int steps) {
  Problem problem;
  torch::optim::LBFGS lbfgs(problem.net->parameters(), lbfgs_options(line_search));
  double last = 0;
  for (int step = 0; step < steps; ++step) {
    const at::Tensor loss = lbfgs.step([&] {
      lbfgs.zero_grad();
      at::Tensor total = torch::zeros({}, at::kDouble);
      for (int r = 0; r < ronde::size(); ++r) total = total + problem.loss(r) / ronde::size();
      total.backward();
      return total;
    });
    last = loss.item<double>();
  }
  return {flatten(problem.net->parameters()), last};
}

}  // namespace

TEST_CASE("LBFGS on N ranks equals one process, with and without line search") {
  use_ronde();
  constexpr int kSteps = 4;
  for (const auto& line_search :
       {std::optional<std::string>(), std::optional<std::string>("strong_wolfe")}) {
    Problem problem;
    torch::optim::LBFGS lbfgs(problem.net->parameters(), lbfgs_options(line_search));
    DistributedOptimizer optimizer(lbfgs, problem.net->named_parameters());
    double last = 0;
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor loss = optimizer.step([&] {
        // Either zero_grad() will do.
        if (step % 2 == 0) {
          optimizer.zero_grad();
        } else {
          lbfgs.zero_grad();
        }
        at::Tensor mine = problem.loss(ronde::rank());
        mine.backward();
        return mine;
      });
      last = loss.item<double>();
    }
    const auto [expected, expected_loss] = lbfgs_whole(line_search, kSteps);
    CHECK(near(flatten(problem.net->parameters()), expected, 1e-7));
    CHECK(last == Approx(expected_loss).epsilon(1e-7));
    CHECK(same_on_all_ranks(flatten(problem.net->parameters())));
    CHECK_FALSE(near(expected, flatten(Problem().net->parameters()), 1e-2));
  }
}

TEST_CASE("a sum of scaled gradients is minimised by LBFGS as in one process", "[n2]") {
  use_ronde();
  Problem problem;
  torch::optim::LBFGS lbfgs(problem.net->parameters(), lbfgs_options("strong_wolfe"));
  DistributedOptimizer optimizer(lbfgs, problem.net->named_parameters(),
                                 {.op = ronde::ReduceOp::Sum, .prescale = 1.0 / ronde::size()});
  const at::Tensor loss = optimizer.step([&] {
    optimizer.zero_grad();
    at::Tensor mine = problem.loss(ronde::rank());
    mine.backward();
    return mine;
  });
  const auto [expected, expected_loss] = lbfgs_whole("strong_wolfe", 1);
  CHECK(near(flatten(problem.net->parameters()), expected, 1e-7));
  CHECK(loss.item<double>() == Approx(expected_loss));
}

TEST_CASE("parameters added later are reduced from then on, as in one process") {
  use_ronde();
  using Step =
      std::function<void(torch::optim::Optimizer&, const at::Tensor&, const at::Tensor&, int)>;
  const auto train = [](const Step& take_step) {
    const at::Tensor a = at::ones({4}, at::kDouble).requires_grad_();
    const at::Tensor b = at::ones({3}, at::kDouble).requires_grad_();
    torch::optim::SGD sgd({a}, torch::optim::SGDOptions(0.1).momentum(0.5));
    for (int step = 0; step < 6; ++step) {
      if (step == 3) {
        sgd.add_param_group(torch::optim::OptimizerParamGroup(
            {b}, std::make_unique<torch::optim::SGDOptions>(0.3)));
      }
      take_step(sgd, a, b, step);
    }
    return flatten({a, b});
  };
  std::unique_ptr<DistributedOptimizer> optimizer;
  const at::Tensor mine = train([&](torch::optim::Optimizer& sgd, const at::Tensor& a,
                                    const at::Tensor& b, int step) {
    Names names;
    names.insert("a", a);
    names.insert("b", b);
    if (step == 0) {
      optimizer = std::make_unique<DistributedOptimizer>(
          sgd, names, ronde::DistributedOptimizerOptions{.groups = 2});
      CHECK(contains(usage_error([&] { optimizer->add_parameters(names); }), "new"));
    }
    if (step == 3) {
      // Not before it is told.
      CHECK(contains(usage_error([&] { optimizer->step(); }), "add_parameters()"));
      CHECK(contains(usage_error([&] { optimizer->add_parameters(Names()); }), "named_parameters"));
      optimizer->add_parameters(names);
    }
    optimizer->zero_grad();
    ((a.pow(2).sum() + b.pow(3).sum()) * (ronde::rank() + 1.0)).backward();
    if (step == 4) {
      CHECK(contains(usage_error([&] { optimizer->add_parameters(names); }), "synchronize()"));
    }
    optimizer->step();
  });
  optimizer.reset();
  const at::Tensor expected =
      train([&](torch::optim::Optimizer& sgd, const at::Tensor& a, const at::Tensor& b, int) {
        sgd.zero_grad();
        ((a.pow(2).sum() + b.pow(3).sum()) * (mean_rank() + 1.0)).backward();
        sgd.step();
      });
  CHECK(near(mine, expected, 1e-12));
  CHECK(same_on_all_ranks(mine));
}

TEST_CASE("the number of backward passes can be changed between steps", "[n2]") {
  use_ronde();
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  for (const int passes : {1, 3, 2}) {
    optimizer.set_backward_passes_per_step(passes);
    optimizer.zero_grad();
    for (int pass = 0; pass < passes; ++pass) toy.backward(ronde::rank() + 1.0);
    CHECK(contains(usage_error([&] { optimizer.set_backward_passes_per_step(1); }),
                   "set_backward_passes_per_step() was called"));
    optimizer.synchronize();
    toy.check_gradient(passes * (mean_rank() + 1.0));
    optimizer.step();
  }
  CHECK(contains(usage_error([&] { optimizer.set_backward_passes_per_step(0); }), "at least 1"));
}

TEST_CASE("skip_synchronize steps with the gradients as they are", "[n2]") {
  use_ronde();
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  {
    const auto unsent = optimizer.no_sync();
    toy.backward(ronde::rank() + 1.0);
  }
  {
    auto outer = optimizer.skip_synchronize();
    const auto moved = std::move(outer);
    optimizer.step();
  }
  // A step of this rank alone.
  CHECK(near(toy.p, at::full({4}, 1.0 - (ronde::rank() + 1.0), at::kDouble), 1e-14));
  optimizer.zero_grad();
  toy.backward(1.0);
  {
    const auto skip = optimizer.skip_synchronize();
    CHECK(contains(usage_error([&] { optimizer.step(); }), "skip_synchronize()"));
  }
  optimizer.step();
  toy.check_gradient(1.0);
}

TEST_CASE("local parameters may be others on every rank, and are not reduced", "[n2][n3]") {
  use_ronde();
  const int rank = ronde::rank();
  const at::Tensor shared = at::ones({2}, at::kDouble).requires_grad_();
  const at::Tensor own = at::ones({rank + 1}, at::kDouble).requires_grad_();
  Names names;
  names.insert("shared", shared);
  names.insert("own" + std::to_string(rank), own);
  torch::optim::SGD sgd({shared, own}, 1.0);
  for (const bool scaled : {true, false}) {
    for (const double prescale : {1.0, 0.5}) {
      DistributedOptimizer optimizer(sgd, names,
                                     {.prescale = prescale,
                                      .backward_passes_per_step = 2,
                                      .average_aggregated_gradients = true,
                                      .local_parameters = {own},
                                      .scale_local_gradients = scaled});
      optimizer.zero_grad();
      for (int pass = 0; pass < 2; ++pass) ((shared.sum() + own.sum()) * (rank + 1.0)).backward();
      optimizer.synchronize();
      CHECK(near(shared.grad(), at::full({2}, prescale * (mean_rank() + 1), at::kDouble), 1e-12));
      const double scale = scaled ? prescale / ronde::size() : 1.0;
      CHECK(near(own.grad(), at::full({rank + 1}, scale * (rank + 1.0), at::kDouble), 1e-12));
      optimizer.synchronize();  // Scales once.
      CHECK(near(own.grad(), at::full({rank + 1}, scale * (rank + 1.0), at::kDouble), 1e-12));
    }
  }
}

TEST_CASE("two models that are frozen and thawed in turn train as in one process", "[n2][n3]") {
  use_ronde();
  const auto train = [](bool whole) {
    Toy a(0.1);
    Toy b(0.2);
    std::unique_ptr<DistributedOptimizer> of_a;
    std::unique_ptr<DistributedOptimizer> of_b;
    if (!whole) {
      of_a = std::make_unique<DistributedOptimizer>(a.sgd, a.names);
      of_b = std::make_unique<DistributedOptimizer>(b.sgd, b.names);
    }
    for (int step = 0; step < 6; ++step) {
      Toy& trained = step % 2 == 0 ? a : b;
      Toy& frozen = step % 2 == 0 ? b : a;
      trained.p.requires_grad_(true);
      frozen.p.requires_grad_(false);
      a.sgd.zero_grad();
      b.sgd.zero_grad();
      if (whole) {
        ((a.p * b.p).pow(2).sum() * (mean_rank() + 1.0)).backward();
        trained.sgd.step();
      } else {
        of_a->zero_grad();
        of_b->zero_grad();
        ((a.p * b.p).pow(2).sum() * (ronde::rank() + 1.0)).backward();
        (step % 2 == 0 ? *of_a : *of_b).step();
      }
      CHECK_FALSE(frozen.p.grad().defined());
    }
    return flatten({a.p, b.p});
  };
  const at::Tensor mine = train(false);
  CHECK(near(mine, train(true), 1e-12));
  CHECK(same_on_all_ranks(mine));
}

TEST_CASE("a rank without samples adds zeros, and the others count as in one process", "[n2][n3]") {
  use_ronde();
  torch::nn::Linear net(4, 1);
  {
    const torch::NoGradGuard no_grad;
    net->to(at::kDouble);
    for (auto& parameter : net->parameters()) parameter.copy_(normal(parameter.sizes(), 9));
  }
  const auto loss_on = [&](const at::Tensor& x) { return net->forward(x).pow(2).sum(); };
  const bool is_empty = ronde::rank() == 0;
  const at::Tensor mine = is_empty ? rows_of(0).slice(0, 0, 0) : rows_of(ronde::rank());
  torch::optim::SGD sgd(net->parameters(), 0.1);
  DistributedOptimizer optimizer(sgd, net->named_parameters(), {.op = ronde::ReduceOp::Sum});
  loss_on(mine).backward();
  optimizer.synchronize();
  const at::Tensor gradient = net->weight.grad().clone();
  optimizer.step();
  optimizer.zero_grad();
  torch::nn::Linear whole(4, 1);
  whole->to(at::kDouble);
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : whole->parameters()) parameter.copy_(normal(parameter.sizes(), 9));
  }
  at::Tensor total = torch::zeros({}, at::kDouble);
  for (int r = 1; r < ronde::size(); ++r) total = total + whole->forward(rows_of(r)).pow(2).sum();
  total.backward();
  CHECK(near(gradient, whole->weight.grad(), 1e-12));
}

TEST_CASE("a rank without a gradient takes no part in a minimum, maximum or product", "[n2][n3]") {
  use_ronde();
  constexpr std::int64_t kCount = 16;
  // Of one sign: a zero would be seen. Of a maximum they are negative.
  const auto value = [](ronde::ReduceOp op, int rank) {
    const at::Tensor positive =
        normal({kCount}, 700 + static_cast<std::uint64_t>(rank)).abs() + 0.5;
    return op == ronde::ReduceOp::Max ? -positive : positive;
  };
  for (const ronde::ReduceOp op :
       {ronde::ReduceOp::Min, ronde::ReduceOp::Max, ronde::ReduceOp::Product}) {
    for (const int groups : {0, 1}) {
      for (int absent = 0; absent <= ronde::size(); ++absent) {
        CAPTURE(static_cast<int>(op), groups, absent);
        const at::Tensor p = at::zeros({kCount}, at::kDouble).requires_grad_();
        const at::Tensor unused = at::zeros({kCount}, at::kDouble).requires_grad_();
        Names names;
        names.insert("p", p);
        names.insert("unused", unused);
        torch::optim::SGD sgd(names.values(), 1.0);
        DistributedOptimizer optimizer(sgd, names, {.op = op, .groups = groups});
        if (ronde::rank() != absent) (p * value(op, ronde::rank())).sum().backward();
        optimizer.synchronize();
        std::vector<double> expected;
        for (int rank = 0; rank < ronde::size(); ++rank) {
          if (rank == absent) continue;
          const at::Tensor theirs = value(op, rank);
          const auto* const number = theirs.const_data_ptr<double>();
          if (expected.empty()) {
            expected.assign(number, number + kCount);
            continue;
          }
          for (std::size_t i = 0; i < expected.size(); ++i) {
            if (op == ronde::ReduceOp::Min) expected[i] = std::min(expected[i], number[i]);
            if (op == ronde::ReduceOp::Max) expected[i] = std::max(expected[i], number[i]);
            if (op == ronde::ReduceOp::Product) expected[i] *= number[i];
          }
        }
        REQUIRE(p.grad().defined());
        CHECK(near(p.grad(), at::tensor(expected, at::kDouble), 1e-14));
        CHECK_FALSE(unused.grad().defined());
      }
    }
  }
}

TEST_CASE("an optimiser that is kept by the wrapper lives as long", "[n2]") {
  use_ronde();
  const at::Tensor p = at::ones({4}, at::kDouble).requires_grad_();
  Names names;
  names.insert("p", p);
  const std::vector<at::Tensor> parameters = {p};
  auto sgd = std::make_shared<torch::optim::SGD>(parameters, 1.0);
  const std::weak_ptr<torch::optim::SGD> watched = sgd;
  {
    DistributedOptimizer optimizer(std::move(sgd), names);
    CHECK_FALSE(watched.expired());
    (p * (ronde::rank() + 1.0)).sum().backward();
    optimizer.step();
  }
  CHECK(watched.expired());
  CHECK(near(p, at::full({4}, -mean_rank(), at::kDouble), 1e-14));
  CHECK(contains(
      usage_error([&] { DistributedOptimizer(std::shared_ptr<torch::optim::Optimizer>(), names); }),
      "null"));
}

TEST_CASE("an inner optimiser that ends first leaves a wrapper that can be destroyed", "[n2]") {
  use_ronde();
  const at::Tensor p = at::ones({4}, at::kDouble).requires_grad_();
  Names names;
  names.insert("p", p);
  {
    std::unique_ptr<DistributedOptimizer> optimizer;
    {
      torch::optim::SGD sgd({p}, 1.0);
      optimizer = std::make_unique<DistributedOptimizer>(sgd, names);
    }
    // Its hooks still send; what arrives is nobody's.
    (p * (ronde::rank() + 1.0)).sum().backward();
  }
  ronde::barrier();
  p.mutable_grad().reset();
  p.sum().backward();
  CHECK(torch::equal(p.grad(), at::ones({4}, at::kDouble)));
}
