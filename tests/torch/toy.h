// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support.h"

namespace ronde_test {

// One parameter of four numbers, whose gradient is what the loss says.
struct Toy {
  explicit Toy(double lr = 1.0) : sgd({p}, lr) { names.insert("p", p); }
  // Adds `gradient` to the gradient of every element.
  void backward(double gradient) { (p * gradient).sum().backward(); }
  void check_gradient(double expected) {
    REQUIRE(p.grad().defined());
    CHECK(near(p.grad(), at::full({4}, expected, at::kDouble), 1e-14));
  }
  at::Tensor p = at::ones({4}, at::kDouble).requires_grad_();
  torch::OrderedDict<std::string, at::Tensor> names;
  torch::optim::SGD sgd;
};

inline double mean_rank() {
  return (ronde::size() - 1) / 2.0;
}

}  // namespace ronde_test
