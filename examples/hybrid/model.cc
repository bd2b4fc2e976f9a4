// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <ronde/torch.h>

namespace hybrid {

ColumnParallelLinearImpl::ColumnParallelLinearImpl(std::int64_t inputs, std::int64_t outputs,
                                                   const Place& place) {
  const torch::nn::Linear whole(inputs, outputs);
  weight = register_parameter("weight", example::part_of(whole->weight, 0, place));
  bias = register_parameter("bias", example::part_of(whole->bias, 0, place));
}

torch::Tensor ColumnParallelLinearImpl::forward(const torch::Tensor& input) {
  return torch::linear(input, weight, bias);
}

RowParallelLinearImpl::RowParallelLinearImpl(std::int64_t inputs, std::int64_t outputs,
                                             const Place& place)
    : ranks_(place.ranks) {
  const torch::nn::Linear whole(inputs, outputs);
  weight = register_parameter("weight", example::part_of(whole->weight, 1, place));
  bias = register_parameter("bias", whole->bias.detach().clone());
}

torch::Tensor RowParallelLinearImpl::forward(const torch::Tensor& input) {
  const torch::Tensor own = torch::linear(input, weight);
  return bias +
         ronde::allreduce(
             own, {.name = "partial outputs", .op = ronde::ReduceOp::Sum, .process_set = ranks_});
}

Block::Block(std::int64_t hidden, const Place& place)
    : widen_(register_module("widen", ColumnParallelLinear(example::kWidth, hidden, place))),
      narrow_(register_module("narrow", RowParallelLinear(hidden, example::kWidth, place))) {}

torch::Tensor Block::forward(const torch::Tensor& x) {
  return narrow_->forward(torch::relu(widen_->forward(x)));
}

std::vector<torch::Tensor> Block::divided_parameters() const {
  return {widen_->weight, widen_->bias, narrow_->weight};
}

}  // namespace hybrid
