// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ronde/process_set.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

/// A layer divided among ranks after M. Shoeybi et al., "Megatron-LM: Training Multi-Billion
/// Parameter Language Models Using Model Parallelism", 2019, https://arxiv.org/abs/1909.08053,
/// section 3: a linear layer by its outputs, and the next one by its inputs, so that nothing
/// travels between the two.
namespace hybrid {

/// The part of a layer that a rank holds, and the ranks that hold the others.
struct Part {
  int index = 0;
  int count = 1;
  ronde::ProcessSet ranks = {};
};

/// A linear layer of which a rank computes some outputs; their number must be divisible by that of
/// the parts.
///
/// The weights are those that torch::nn::Linear(inputs, outputs) would draw: every rank draws the
/// whole layer, and keeps its part.
class ColumnParallelLinearImpl : public torch::nn::Module {
 public:
  ColumnParallelLinearImpl(std::int64_t inputs, std::int64_t outputs, const Part& part);

  /// Maps [n, inputs], the same on all ranks, to this rank's columns: [n, outputs / part.count].
  torch::Tensor forward(const torch::Tensor& input);

  torch::Tensor weight;  ///< [outputs / part.count, inputs]
  torch::Tensor bias;    ///< [outputs / part.count]
};
TORCH_MODULE(ColumnParallelLinear);

/// A linear layer of which a rank has some inputs; their number must be divisible by that of the
/// parts. The weights are drawn as those of ColumnParallelLinear.
class RowParallelLinearImpl : public torch::nn::Module {
 public:
  RowParallelLinearImpl(std::int64_t inputs, std::int64_t outputs, const Part& part);

  /// Maps this rank's columns, [n, inputs / part.count], to [n, outputs], the same on all ranks, by
  /// an allreduce: forward and backward are collective.
  torch::Tensor forward(const torch::Tensor& input);

  torch::Tensor weight;  ///< [outputs, inputs / part.count]
  torch::Tensor bias;    ///< [outputs], whole on every rank

 private:
  ronde::ProcessSet ranks_;
};
TORCH_MODULE(RowParallelLinear);

/// Images of 8x8 pixels to scores of the ten digits: a layer that every rank has, a block that is
/// split, with a bypass, and another layer that every rank has.
class NetImpl : public torch::nn::Module {
 public:
  NetImpl(std::int64_t hidden, const Part& part);

  torch::Tensor forward(const torch::Tensor& images);

  /// Returns the parameters of which each rank of the model has its own part.
  std::vector<torch::Tensor> split_parameters() const;
  /// Returns the parameters that are the same on all ranks.
  std::vector<torch::Tensor> shared_parameters() const;

 private:
  torch::nn::Linear first_;
  ColumnParallelLinear widen_;
  RowParallelLinear narrow_;
  torch::nn::Linear last_;
};
TORCH_MODULE(Net);

}  // namespace hybrid
