// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <ronde/torch.h>

namespace hybrid {
namespace {

constexpr std::int64_t kPixels = 64;
constexpr std::int64_t kUnits = 64;
constexpr std::int64_t kDigits = 10;

}  // namespace

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

NetImpl::NetImpl(std::int64_t hidden, const Place& place)
    : first_(register_module("first", torch::nn::Linear(kPixels, kUnits))),
      widen_(register_module("widen", ColumnParallelLinear(kUnits, hidden, place))),
      narrow_(register_module("narrow", RowParallelLinear(hidden, kUnits, place))),
      last_(register_module("last", torch::nn::Linear(kUnits, kDigits))) {}

torch::Tensor NetImpl::forward(const torch::Tensor& images) {
  const torch::Tensor x = torch::relu(first_->forward(images.flatten(1)));
  const torch::Tensor block = narrow_->forward(torch::relu(widen_->forward(x)));
  return last_->forward(torch::relu(x + block));
}

std::vector<torch::Tensor> NetImpl::divided_parameters() const {
  return {widen_->weight, widen_->bias, narrow_->weight};
}

}  // namespace hybrid
