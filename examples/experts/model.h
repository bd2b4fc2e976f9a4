// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "digits/divided_net.h"

/// A mixture of experts divided among ranks after S. Singh et al., "A Hybrid
/// Tensor-Expert-Data Parallelism Approach to Optimize Mixture-of-Experts Training", ICS 2023,
/// https://arxiv.org/abs/2303.06318. Each token goes to one expert (W. Fedus et al., "Switch
/// Transformers", 2021, https://arxiv.org/abs/2101.03961, section 2.1), none is dropped.
namespace experts {

using example::Place;

/// Where the parts of a layer of experts are: `expert` ranks have different experts and tokens,
/// `tensor` ranks parts of the same experts, and the same tokens.
struct Division {
  Place expert;
  Place tensor;
};

/// Experts, each a linear layer, relu and a linear layer without bias, and the router that chooses
/// one for each token. The numbers of experts and of hidden units must be divisible by those of
/// ranks. Every rank draws all weights, as torch::nn::Linear, and keeps its own.
class Mixture : public example::DividedBlock {
 public:
  Mixture(std::int64_t hidden, std::int64_t experts, const Division& division);

  /// Maps tokens, the same on all tensor ranks, to the outputs of their experts, each times the
  /// router's probability of it.
  torch::Tensor forward(const torch::Tensor& tokens) override;
  /// Returns a tenth of the imbalance of the experts over the tokens of all ranks, which is 1 where
  /// all get as many, and up to their number (Switch Transformers, equation 4).
  torch::Tensor penalty() const override { return 0.1 * imbalance_; }
  std::vector<torch::Tensor> divided_parameters() const override { return {widen, bias, narrow}; }

  torch::nn::Linear router{nullptr};
  torch::Tensor widen;   ///< [experts here, hidden / tensor.count, kWidth]
  torch::Tensor bias;    ///< [experts here, hidden / tensor.count]
  torch::Tensor narrow;  ///< [experts here, kWidth, hidden / tensor.count]

 private:
  torch::Tensor exchange(const torch::Tensor& tokens, const torch::Tensor& chosen) const;
  torch::Tensor run_experts(const torch::Tensor& tokens, const torch::Tensor& experts) const;

  const Division division_;
  torch::Tensor imbalance_;
};

}  // namespace experts
