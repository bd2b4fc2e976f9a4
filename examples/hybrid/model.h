// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "digits/divided_net.h"

/// A layer divided among ranks after M. Shoeybi et al., "Megatron-LM: Training Multi-Billion
/// Parameter Language Models Using Model Parallelism", 2019, https://arxiv.org/abs/1909.08053,
/// section 3: a linear layer by its outputs, and the next one by its inputs, so that nothing
/// travels between the two.
namespace hybrid {

using example::Place;

/// A linear layer of which a rank computes some outputs; their number must be divisible by
/// `place.count`.
///
/// The weights are those that torch::nn::Linear(inputs, outputs) would draw: every rank draws the
/// whole layer, and keeps its part.
class ColumnParallelLinearImpl : public torch::nn::Module {
 public:
  ColumnParallelLinearImpl(std::int64_t inputs, std::int64_t outputs, const Place& place);

  /// Maps [n, inputs], the same on all ranks, to this rank's columns: [n, outputs / place.count].
  torch::Tensor forward(const torch::Tensor& input);

  torch::Tensor weight;  ///< [outputs / place.count, inputs]
  torch::Tensor bias;    ///< [outputs / place.count]
};
TORCH_MODULE(ColumnParallelLinear);

/// A linear layer of which a rank has some inputs; their number must be divisible by
/// `place.count`. The weights are drawn as those of ColumnParallelLinear.
class RowParallelLinearImpl : public torch::nn::Module {
 public:
  RowParallelLinearImpl(std::int64_t inputs, std::int64_t outputs, const Place& place);

  /// Maps this rank's columns, [n, inputs / place.count], to [n, outputs], the same on all ranks,
  /// by an allreduce: forward and backward are collective.
  torch::Tensor forward(const torch::Tensor& input);

  torch::Tensor weight;  ///< [outputs, inputs / place.count]
  torch::Tensor bias;    ///< [outputs], whole on every rank

 private:
  ronde::ProcessSet ranks_;
};
TORCH_MODULE(RowParallelLinear);

/// The two layers, with `hidden` units between them.
class Block : public example::DividedBlock {
 public:
  Block(std::int64_t hidden, const Place& place);

  torch::Tensor forward(const torch::Tensor& x) override;
  std::vector<torch::Tensor> divided_parameters() const override;

 private:
  ColumnParallelLinear widen_;
  RowParallelLinear narrow_;
};

}  // namespace hybrid
