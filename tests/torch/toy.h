// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/torch/support.h"

namespace ronde_test {

/// Parameters of four ones each, whose gradients are what backward() says.
struct Toy {
  explicit Toy(double lr = 1.0, const std::vector<std::string>& keys = {"p"})
      : names(ones(keys)), p(names.front().value()), sgd(names.values(), lr) {}

  /// Adds `gradient` to the gradient of every element.
  void backward(double gradient) const { loss(gradient).backward(); }
  at::Tensor loss(double gradient) const {
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (const auto& item : names) sum = sum + (item.value() * gradient).sum();
    return sum;
  }

  /// Adds a parameter, also to `sgd`.
  at::Tensor add(const std::string& key) {
    names.insert(key, ones_parameter({4}));
    sgd.add_param_group(torch::optim::OptimizerParamGroup(
        {names[key]}, std::make_unique<torch::optim::SGDOptions>(1.0)));
    return names[key];
  }

  void check_gradients(double expected,
                       std::source_location where = std::source_location::current()) const {
    INFO("at " << where.file_name() << ":" << where.line());
    for (const auto& item : names) {
      CAPTURE(item.key());
      REQUIRE(item.value().grad().defined());
      CHECK(near(item.value().grad(), full({4}, expected), 1e-14));
    }
  }

  void check_values(double expected,
                    std::source_location where = std::source_location::current()) const {
    INFO("at " << where.file_name() << ":" << where.line());
    for (const auto& item : names) {
      CAPTURE(item.key());
      CHECK(near(item.value(), full({4}, expected), 1e-14));
    }
  }

  Names names;
  at::Tensor p;
  torch::optim::SGD sgd;

 private:
  static Names ones(const std::vector<std::string>& keys) {
    Names all;
    for (const std::string& key : keys) all.insert(key, ones_parameter({4}));
    return all;
  }
};

/// A toy with what trains it on all ranks.
struct WrappedToy : Toy {
  explicit WrappedToy(const DistributedOptimizerOptions& options = {}, double lr = 1.0,
                      const std::vector<std::string>& keys = {"p"})
      : Toy(lr, keys), optimizer(sgd, names, options) {}

  DistributedOptimizer optimizer;
};

inline void train(const Toy& toy, DistributedOptimizer& optimizer, int steps,
                  double gradient = 1.0) {
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    toy.backward(gradient);
    optimizer.step();
  }
}

inline void train(WrappedToy& toy, int steps = 1, double gradient = 1.0) {
  train(toy, toy.optimizer, steps, gradient);
}

inline void change(const at::Tensor& parameter, double by) {
  const at::NoGradGuard no_grad;
  parameter.add_(by);
}

/// A regression that is not quadratic, on rows that are each rank's own.
struct Regression {
  explicit Regression(at::ScalarType dtype = at::kDouble) {
    net->to(dtype);
    fill_normal(net->parameters(), 70, 0.4);
  }

  Tensors parameters() const { return net->parameters(); }
  Names names() const { return net->named_parameters(); }

  at::Tensor loss(int step, int rank = ronde::rank()) {
    const at::ScalarType dtype = parameters().front().scalar_type();
    const at::Tensor x = normal({6, 4}, 40 * step + rank, dtype);
    return torch::mse_loss(net->forward(x).to(dtype), torch::sin(x.slice(1, 0, 2)));
  }

  /// The mean over the rows of all ranks.
  at::Tensor whole_loss(int step) {
    return at::stack(by_rank([&](int rank) { return loss(step, rank); })).mean();
  }

  torch::nn::Sequential net{torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2)};
};

}  // namespace ronde_test
