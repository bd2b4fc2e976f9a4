// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <ronde/torch.h>

namespace experts {

using example::kWidth;

namespace {

torch::Tensor all_rows(const torch::Tensor& rows, const char* name, const Place& place) {
  return ronde::allgather(rows, {.name = name, .process_set = place.ranks});
}

}  // namespace

Mixture::Mixture(std::int64_t hidden, std::int64_t experts, const Division& division)
    : division_(division) {
  router = register_module("router", torch::nn::Linear(kWidth, experts));
  std::vector<torch::Tensor> widens, biases, narrows;
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    const torch::nn::Linear wide(kWidth, hidden);
    const torch::nn::Linear narrowing(torch::nn::LinearOptions(hidden, kWidth).bias(false));
    if (expert / (experts / division.expert.count) != division.expert.index) continue;
    widens.push_back(example::part_of(wide->weight, 0, division.tensor));
    biases.push_back(example::part_of(wide->bias, 0, division.tensor));
    narrows.push_back(example::part_of(narrowing->weight, 1, division.tensor));
  }
  widen = register_parameter("widen", torch::stack(widens));
  bias = register_parameter("bias", torch::stack(biases));
  narrow = register_parameter("narrow", torch::stack(narrows));
}

torch::Tensor Mixture::forward(const torch::Tensor& tokens) {
  const torch::Tensor probabilities = torch::softmax(router->forward(tokens), 1);
  const auto [probability, chosen] = probabilities.max(1);
  const torch::Tensor shares =
      ronde::allreduce(torch::one_hot(chosen, probabilities.size(1)).to(tokens.dtype()).mean(0),
                       {.name = "shares of experts"});
  imbalance_ = static_cast<double>(shares.numel()) * shares.dot(probabilities.mean(0));
  return probability.unsqueeze(1) * exchange(tokens, chosen);
}

/// Sends each token to the rank of its expert, and the output back.
///
/// The tensor ranks have the same tokens. Each sends another part of them, and they share what
/// arrives: TED's duplicate token dropping (section 5), which divides the alltoall by their number.
torch::Tensor Mixture::exchange(const torch::Tensor& tokens, const torch::Tensor& chosen) const {
  const auto& [expert, tensor] = division_;
  const auto part = static_cast<std::size_t>(tensor.index);
  const torch::Tensor own = tokens.tensor_split(tensor.count)[part];
  const torch::Tensor own_chosen = chosen.tensor_split(tensor.count)[part];
  const torch::Tensor order = own_chosen.argsort(/*stable=*/true);
  const std::int64_t experts_of_rank = widen.size(0);
  const torch::Tensor counts =
      torch::bincount(own_chosen.floor_divide(experts_of_rank), {}, expert.count);
  const std::vector<std::int64_t> sent(counts.const_data_ptr<std::int64_t>(),
                                       counts.const_data_ptr<std::int64_t>() + expert.count);

  const ronde::TensorWork numbers =
      ronde::alltoall_async(own_chosen.index_select(0, order), sent,
                            {.name = "experts of tokens", .process_set = expert.ranks});
  const torch::Tensor arrived = ronde::alltoall(own.index_select(0, order), sent,
                                                {.name = "tokens", .process_set = expert.ranks});
  const torch::Tensor experts = all_rows(numbers.wait(), "experts of shared tokens", tensor);
  const torch::Tensor rows =
      all_rows(torch::tensor({arrived.size(0)}, torch::kInt64), "rows of tokens", tensor);
  const torch::Tensor outputs = run_experts(all_rows(arrived, "shared tokens", tensor),
                                            experts - expert.index * experts_of_rank);

  const std::int64_t before = rows.narrow(0, 0, tensor.index).sum().item<std::int64_t>();
  const torch::Tensor returned =
      ronde::alltoall(outputs.narrow(0, before, arrived.size(0)), numbers.received_splits(),
                      {.name = "outputs", .process_set = expert.ranks});
  return all_rows(torch::zeros_like(own).index_copy(0, order, returned), "shared outputs", tensor);
}

/// `experts`: of each token, numbered from 0 on this rank.
torch::Tensor Mixture::run_experts(const torch::Tensor& tokens,
                                   const torch::Tensor& experts) const {
  torch::Tensor partial = torch::zeros_like(tokens);
  for (std::int64_t expert = 0; expert < widen.size(0); ++expert) {
    const torch::Tensor rows = (experts == expert).nonzero().squeeze(1);
    const torch::Tensor hidden =
        torch::relu(torch::linear(tokens.index_select(0, rows), widen[expert], bias[expert]));
    partial = partial.index_copy(0, rows, torch::linear(hidden, narrow[expert]));
  }
  return ronde::allreduce(partial, {.name = "partial outputs",
                                    .op = ronde::ReduceOp::Sum,
                                    .process_set = division_.tensor.ranks});
}

}  // namespace experts
