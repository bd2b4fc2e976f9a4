// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/torch/support.h"

namespace ronde_test {

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

  torch::nn::Sequential net{torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2)};
};

}  // namespace ronde_test
