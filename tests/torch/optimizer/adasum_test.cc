// SPDX-License-Identifier: Apache-2.0
// DistributedOptimizer with ReduceOp::Adasum, of deltas and of gradients.
#include <stdexcept>

#include "adasum.h"
#include "toy.h"

using namespace ronde_test;
using ronde::DistributedOptimizer;
using ronde::ReduceOp;

namespace {

using Tensors = std::vector<at::Tensor>;

struct Net {
  Net() {
    const torch::NoGradGuard no_grad;
    modules->to(at::kDouble);
    std::uint64_t seed = 70;
    for (auto& parameter : modules->parameters()) {
      parameter.copy_(normal(parameter.sizes(), seed++) * 0.4);
    }
  }
  at::Tensor loss(int step, int rank) {
    const at::Tensor x = normal({6, 4}, static_cast<std::uint64_t>(40 * step + rank));
    return torch::mse_loss(modules->forward(x), torch::sin(x.slice(1, 0, 2)));
  }
  torch::nn::Sequential modules{torch::nn::Linear(4, 8), torch::nn::Tanh(),
                                torch::nn::Linear(8, 2)};
};

using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(Tensors)>;

const std::vector<std::pair<std::string, Make>>& optimizers() {
  static const std::vector<std::pair<std::string, Make>> all = {
      {"sgd",
       [](Tensors parameters) {
         return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                                    torch::optim::SGDOptions(0.1).momentum(0.9));
       }},
      {"adam", [](Tensors parameters) {
         return std::make_unique<torch::optim::Adam>(std::move(parameters),
                                                     torch::optim::AdamOptions(0.02));
       }}};
  return all;
}

constexpr int kSteps = 8;

void clip(torch::nn::Sequential& modules, bool clips) {
  if (clips) torch::nn::utils::clip_grad_norm_(modules->parameters(), 0.1);
}

/// A model for each rank, all in this process: each steps by itself, and the changes are combined.
at::Tensor train_deltas(const Make& make, int ranks, bool clips) {
  std::vector<Net> nets(static_cast<std::size_t>(ranks));
  std::vector<std::unique_ptr<torch::optim::Optimizer>> inner;
  for (Net& net : nets) inner.push_back(make(net.modules->parameters()));
  const torch::NoGradGuard no_grad;
  for (int step = 0; step < kSteps; ++step) {
    Tensors before;
    for (const at::Tensor& parameter : nets.front().modules->parameters()) {
      before.push_back(parameter.detach().clone());
    }
    for (std::size_t rank = 0; rank < nets.size(); ++rank) {
      const at::AutoGradMode gradients_on(true);
      inner[rank]->zero_grad();
      nets[rank].loss(step, static_cast<int>(rank)).backward();
      clip(nets[rank].modules, clips);
      inner[rank]->step();
    }
    for (std::size_t i = 0; i < before.size(); ++i) {
      Tensors deltas;
      for (Net& net : nets) deltas.push_back(net.modules->parameters()[i] - before[i]);
      const at::Tensor after = before[i] + adasum(deltas);
      for (Net& net : nets) net.modules->parameters()[i].copy_(after);
    }
  }
  return flatten(nets.front().modules->parameters());
}

}  // namespace

TEST_CASE("steps of each rank's own are combined by Adasum", "[n1][n2][n3]") {
  use_ronde();
  for (const auto& [name, make] : optimizers()) {
    for (const bool clips : {false, true}) {
      CAPTURE(name, clips);
      Net net;
      const auto inner = make(net.modules->parameters());
      DistributedOptimizer optimizer(*inner, net.modules->named_parameters(),
                                     {.op = ReduceOp::Adasum});
      for (int step = 0; step < kSteps; ++step) {
        optimizer.zero_grad();
        net.loss(step, ronde::rank()).backward();
        if (clips) optimizer.synchronize();
        clip(net.modules, clips);
        optimizer.step();
      }
      const at::Tensor mine = flatten(net.modules->parameters());
      CHECK(near(mine, train_deltas(make, ronde::size(), clips), 1e-9));
      CHECK(same_on_all_ranks(mine));
    }
  }
}

TEST_CASE("gradients are combined by Adasum, if deltas are not wanted", "[n1][n2][n3]") {
  use_ronde();
  for (const int groups : {0, 2}) {
    Net net;
    Net own;
    torch::optim::SGD sgd(net.modules->parameters(), 0.1);
    DistributedOptimizer optimizer(
        sgd, net.modules->named_parameters(),
        {.op = ReduceOp::Adasum, .adasum_of_deltas = false, .groups = groups});
    net.loss(0, ronde::rank()).backward();
    optimizer.synchronize();
    std::vector<Tensors> of_ranks;
    for (int rank = 0; rank < ronde::size(); ++rank) {
      own.modules->zero_grad();
      own.loss(0, rank).backward();
      Tensors gradients;
      for (const at::Tensor& parameter : own.modules->parameters()) {
        gradients.push_back(parameter.grad());
      }
      of_ranks.push_back(gradients);
    }
    for (std::size_t i = 0; i < of_ranks.front().size(); ++i) {
      Tensors all;
      for (const Tensors& gradients : of_ranks) all.push_back(gradients[i]);
      CHECK(near(net.modules->parameters()[i].grad(), adasum(all), 1e-10));
    }
    optimizer.step();
  }
}

TEST_CASE("deltas know passes, unused and frozen parameters, and steps of one rank", "[n2]") {
  use_ronde();
  const at::Tensor p = at::ones({4}, at::kDouble).requires_grad_();
  const at::Tensor unused = at::ones({2}, at::kDouble).requires_grad_();
  const at::Tensor frozen = at::ones({3}, at::kDouble);
  const at::Tensor half = at::ones({2}, at::kDouble).requires_grad_();
  torch::OrderedDict<std::string, at::Tensor> names;
  names.insert("p", p);
  names.insert("unused", unused);
  names.insert("frozen", frozen);
  names.insert("half", half);
  torch::optim::SGD sgd({p, unused, frozen, half}, 1.0);
  DistributedOptimizer optimizer(sgd, names,
                                 {.op = ReduceOp::Adasum,
                                  .backward_passes_per_step = 2,
                                  .average_aggregated_gradients = true});
  const double own = ronde::rank() + 1.0;
  for (int pass = 0; pass < 2; ++pass) {
    at::Tensor loss = (p * own).sum();
    if (ronde::rank() == 0) loss = loss + 3 * half.sum();
    loss.backward();
  }
  optimizer.step();
  // Parallel vectors of lengths 1 and 2: 1 (1 - 2/2) + 2 (1 - 2/8) = 1.5, their average.
  CHECK(near(p, at::full({4}, 1.0 - 1.5, at::kDouble), 1e-12));
  CHECK(near(half, at::full({2}, 1.0 - 3.0, at::kDouble), 1e-12));
  CHECK(torch::equal(unused, at::ones({2}, at::kDouble)));
  CHECK(torch::equal(frozen, at::ones({3}, at::kDouble)));
  CHECK(contains(usage_error([&] { static_cast<void>(optimizer.skip_synchronize()); }), "Clip"));
}

TEST_CASE("steps of all types are combined by Adasum, also with halves on the wire", "[n2][n3]") {
  use_ronde();
  struct Row {
    at::ScalarType dtype;
    std::shared_ptr<ronde::Compression> compression;
    double tolerance;  // of numbers about 1
  };
  const auto fp16 = ronde::Compression::fp16();
  const auto bf16 = ronde::Compression::bf16();
  const std::vector<Row> rows = {{at::kFloat, nullptr, 1e-6},    {at::kHalf, nullptr, 4e-3},
                                 {at::kBFloat16, nullptr, 3e-2}, {at::kDouble, fp16, 4e-3},
                                 {at::kFloat, bf16, 3e-2},       {at::kHalf, fp16, 4e-3}};
  const auto gradient_of = [](int rank, at::ScalarType dtype) {
    return normal({40}, static_cast<std::uint64_t>(60 + rank)).to(dtype);
  };
  for (const auto& [dtype, compression, tolerance] : rows) {
    for (const bool of_deltas : {true, false}) {
      CAPTURE(at::toString(dtype), compression != nullptr, of_deltas);
      const at::Tensor p = at::zeros({40}, dtype).requires_grad_();
      torch::OrderedDict<std::string, at::Tensor> names;
      names.insert("p", p);
      torch::optim::SGD sgd({p}, 1.0);
      DistributedOptimizer optimizer(
          sgd, names,
          {.op = ReduceOp::Adasum, .adasum_of_deltas = of_deltas, .compression = compression});
      (p * gradient_of(ronde::rank(), dtype)).sum().backward();
      optimizer.step();
      Tensors gradients;
      for (int rank = 0; rank < ronde::size(); ++rank) {
        gradients.push_back(gradient_of(rank, dtype));
      }
      CHECK(near(p.detach().to(at::kDouble), -adasum(gradients), tolerance));
      CHECK(same_on_all_ranks(p.detach()));
    }
  }
}

TEST_CASE("where the step of one rank fails, no rank's step counts", "[n2][n3]") {
  use_ronde();
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
  Failing inner(std::vector<at::Tensor>{toy.p}, 1.0);
  DistributedOptimizer optimizer(inner, toy.names, {.op = ReduceOp::Adasum});
  for (const bool fails : {true, false}) {
    inner.fails = fails && ronde::rank() == 1;
    toy.backward(1.0);
    if (inner.fails) {
      CHECK_THROWS_WITH(optimizer.step(), "the step fails");
    } else if (fails) {
      CHECK_THROWS_AS(optimizer.step(), ronde::Error);
    } else {
      optimizer.step();
    }
    CHECK(near(toy.p, at::full({4}, fails ? 1.0 : 0.0, at::kDouble), 1e-12));
    if (fails) CHECK(contains(usage_error([&] { optimizer.step(); }), "Call zero_grad()"));
    optimizer.zero_grad();
  }
}

TEST_CASE("a scaler leaves out a step of deltas on all ranks", "[n2]") {
  use_ronde();
  Toy toy(1.0);
  DistributedOptimizer optimizer(toy.sgd, toy.names, {.op = ReduceOp::Adasum});
  ronde::GradScaler scaler({.init_scale = 4.0});
  for (const bool overflows : {true, false}) {
    optimizer.zero_grad();
    const bool here = overflows && ronde::rank() == 1;
    scaler.scale((toy.p * (here ? 1e308 * 10 : 1.0)).sum()).backward();
    CHECK(scaler.step(optimizer) == !overflows);
    scaler.update();
  }
  CHECK(near(toy.p, at::zeros({4}, at::kDouble), 1e-12));
}

TEST_CASE("what does not go with Adasum is refused", "[n1][n2]") {
  use_ronde();
  Toy toy;
  const auto refused = [&](const ronde::DistributedOptimizerOptions& options) {
    return usage_error([&] { DistributedOptimizer optimizer(toy.sgd, toy.names, options); });
  };
  struct Own final : ronde::Compression {
    std::string description() const override { return "of one's own"; }
    std::unique_ptr<ronde::CompressedGradient> make(const std::string&,
                                                    const at::Tensor&) override {
      return nullptr;
    }
  };
  CHECK(contains(refused({.op = ReduceOp::Adasum, .compression = std::make_shared<Own>()}),
                 "compression of one's own"));
  CHECK(contains(refused({.op = ReduceOp::Adasum, .groups = 1}), "adasum_of_deltas"));
  torch::optim::LBFGS lbfgs({toy.p}, 1.0);
  CHECK(contains(usage_error([&] {
                   DistributedOptimizer optimizer(lbfgs, toy.names, {.op = ReduceOp::Adasum});
                 }),
                 "LBFGS"));
}
