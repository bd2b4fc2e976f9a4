// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "adasum.h"

namespace ronde_test::pairs_test {
namespace {

constexpr std::int64_t kBatch = 6;

int number(const std::string& text) {
  return std::stoi(text);
}

/// Of the scaler: an f16 holds any gradient times this.
double loss_scale_of(const Row& row) {
  return row.is("scaler", "yes") ? kLossScale : 1.0;
}

/// To `bits` of precision and, at the least, multiples of `least`; ties to even.
double rounded(double value, int bits, double least) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent = 0;
  std::frexp(value, &exponent);
  const double unit = std::max(std::ldexp(1.0, exponent - bits), least);
  return std::nearbyint(value / unit) * unit;
}

/// As an element of the type in which gradients travel, times the scale.
double on_the_wire(double value, const Row& row) {
  const double scale = loss_scale_of(row);
  if (row.is("compression", "fp16")) {
    return rounded(value * scale, 11, std::ldexp(1.0, -24)) / scale;
  }
  if (row.is("compression", "bf16")) {
    return rounded(value * scale, 8, std::ldexp(1.0, -133)) / scale;
  }
  return value;
}

double prescale_of(const Row& row) {
  double scale = row.is("scales", "both") ? 0.5 : 1.0;
  if (row.is("average_passes", "yes")) scale /= passes_of(row);
  return row.is("predivide", "2") ? scale / 2 : scale;
}

double postscale_of(const Row& row) {
  const double scale = row.is("scales", "both") ? 3.0 : 1.0;
  return row.is("predivide", "2") ? scale * 2 : scale;
}

/// Of a sum over the ranks.
double scale_of(const Row& row, std::size_t ranks) {
  const double scale = prescale_of(row) * postscale_of(row);
  return row.is("op", "average") ? scale / static_cast<double>(ranks) : scale;
}

/// Of the gradients that a rank keeps.
double local_scale_of(const Row& row, std::size_t ranks) {
  if (row.is("local", "experts") && !row.is("op", "adasum")) return scale_of(row, ranks);
  // Passes within no_sync() are not counted.
  const bool averages = row.is("average_passes", "yes") && !row.is("calls", "no_sync");
  return averages ? 1.0 / passes_of(row) : 1.0;
}

/// Half types are computed in f32, and rounded once.
at::Tensor combined_on_the_wire(const Tensors& of_ranks, const Row& row) {
  at::Tensor result = at::empty_like(of_ranks.front());
  const double ranks = static_cast<double>(of_ranks.size());
  const bool is_average = row.is("op", "average");
  const bool is_power = (of_ranks.size() & (of_ranks.size() - 1)) == 0;
  const double post = postscale_of(row);
  for (std::int64_t i = 0; i < result.numel(); ++i) {
    float sum = 0;
    for (const at::Tensor& gradient : of_ranks) {
      const double own = gradient.view(-1)[i].item<double>() * prescale_of(row);
      sum += static_cast<float>(on_the_wire(own, row));
    }
    const auto factor = static_cast<float>(is_average && is_power ? post / ranks : post);
    float scaled = sum * factor;
    if (is_average && !is_power) scaled /= static_cast<float>(ranks);
    result.view(-1)[i] = on_the_wire(static_cast<double>(scaled), row);
  }
  return result;
}

/// One backward through the losses of all ranks.
void whole_backward(PairsNet& net, const Row& row, int ranks, int step) {
  const double weight = scale_of(row, static_cast<std::size_t>(ranks));
  at::Tensor loss = torch::zeros({}, at::kDouble);
  for (int rank = 0; rank < ranks; ++rank) loss = loss + losses_of(net, row, step, rank) * weight;
  loss.backward();
  if (!has_experts(row)) return;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : net->experts->parameters()) {
    if (!parameter.grad().defined()) continue;
    parameter.grad().mul_(local_scale_of(row, static_cast<std::size_t>(ranks)) / weight);
  }
}

/// Each rank's values are scaled and rounded, then added up; the sum is scaled.
at::Tensor combined_sparse(const Tensors& of_ranks, const Row& row) {
  at::Tensor sum = at::zeros_like(of_ranks.front());
  for (const at::Tensor& gradient : of_ranks) {
    for (std::int64_t i = 0; i < sum.numel(); ++i) {
      sum.view(-1)[i] += on_the_wire(gradient.view(-1)[i].item<double>() * prescale_of(row), row);
    }
  }
  const double ranks = row.is("op", "average") ? static_cast<double>(of_ranks.size()) : 1;
  return (sum * (postscale_of(row) / ranks)).to_sparse(1);
}

/// Each rank's gradients, by themselves.
std::vector<Tensors> gradients_of_ranks(PairsNet& net, const Row& row, int ranks, int step) {
  std::vector<Tensors> all;
  for (int rank = 0; rank < ranks; ++rank) {
    net->zero_grad();
    losses_of(net, row, step, rank).backward();
    Tensors gradients;
    for (const at::Tensor& parameter : net->parameters()) gradients.push_back(parameter.grad());
    all.push_back(std::move(gradients));
  }
  return all;
}

at::Tensor combined(Tensors of_ranks, const Row& row) {
  if (!row.is("op", "adasum")) return combined_on_the_wire(of_ranks, row);
  if (row.is("set", "reversed")) std::reverse(of_ranks.begin(), of_ranks.end());
  // Adasum of multiples is a multiple of it.
  return adasum(of_ranks) * (prescale_of(row) * postscale_of(row));
}

/// Each rank's gradients are computed by themselves, then combined.
void separate_backward(PairsNet& net, const Row& row, int ranks, int step) {
  std::vector<bool> had_gradient;
  for (const at::Tensor& parameter : net->parameters()) {
    had_gradient.push_back(parameter.grad().defined());
  }
  const std::vector<Tensors> all = gradients_of_ranks(net, row, ranks, step);
  std::size_t index = 0;
  for (const auto& item : net->named_parameters()) {
    Tensors of_ranks;
    bool is_used = had_gradient[index];
    for (const Tensors& gradients : all) {
      const at::Tensor& gradient = gradients[index];
      is_used = is_used || gradient.defined();
      of_ranks.push_back(gradient.defined() ? gradient.to_dense()
                                            : at::zeros(item.value().sizes(), at::kDouble));
    }
    ++index;
    at::Tensor parameter = item.value();
    if (!is_used) continue;
    if (has_experts(row) && item.key().rfind("experts", 0) == 0) {
      const double scale = local_scale_of(row, of_ranks.size());
      parameter.mutable_grad() = at::stack(of_ranks).sum(0) * scale;
    } else if (row.is("embedding", "sparse") && item.key() == "embedding.weight") {
      parameter.mutable_grad() = combined_sparse(of_ranks, row);
    } else {
      parameter.mutable_grad() = combined(of_ranks, row);
    }
  }
}

/// The parameters of the second layer may be a group of their own, with a smaller rate.
template <typename Optimizer, typename Options>
std::unique_ptr<torch::optim::Optimizer> make_with(const Row& row, const Names& parameters,
                                                   const Options& options) {
  Tensors first;
  Tensors second;
  for (const auto& item : parameters) {
    const bool is_second = row.is("param_groups", "2") && item.key().rfind("second", 0) == 0;
    (is_second ? second : first).push_back(item.value());
  }
  std::vector<torch::optim::OptimizerParamGroup> groups = {{std::move(first)}};
  if (!second.empty()) {
    auto slower = std::make_unique<Options>(options);
    slower->set_lr(0.5 * slower->get_lr());
    groups.emplace_back(std::move(second), std::move(slower));
  }
  return std::make_unique<Optimizer>(groups, options);
}

}  // namespace

const std::vector<Factor>& optimizer_factors() {
  static const std::vector<Factor> factors = {
      {"inner", {"sgd", "adam", "adamw", "rmsprop", "adagrad"}},
      {"op", {"average", "sum", "adasum", "deltas"}},
      {"scales", {"none", "both"}},
      {"passes", {"2", "1", "3"}},
      {"average_passes", {"no", "yes"}},
      {"predivide", {"1", "2"}},
      {"groups", {"none", "3", "lists"}},
      {"compression", {"none", "fp16", "bf16"}},
      {"embedding", {"dense", "sparse", "as_dense"}},
      {"local", {"none", "experts", "unscaled"}},
      {"views", {"yes", "no"}},
      {"zero_grad", {"none", "zero"}},
      {"clip", {"no", "synchronize", "skip"}},
      {"frozen", {"none", "thaws", "freezes"}},
      {"calls", {"plain", "closure", "no_sync"}},
      {"hook", {"no", "yes"}},
      {"find_nonfinite", {"no", "yes"}},
      {"scaler", {"no", "yes"}},
      {"param_groups", {"1", "2"}},
      {"scheduler", {"none", "step"}},
      {"set", {"all", "reversed"}}};
  return factors;
}

bool is_forbidden(const Row& row) {
  if (!row.is("op", "average") && row.is("predivide", "2")) return true;
  // A closure runs backward, and the step follows.
  if (row.is("calls", "closure") && (!row.is("clip", "no") || row.is("scaler", "yes"))) return true;
  if (row.is("calls", "no_sync") && row.is("passes", "1")) return true;  // the last is outside
  // The oracle's Adasum is of f64, and there is none of sparse gradients.
  const bool is_adasum = row.is("op", "adasum") || row.is("op", "deltas");
  if (is_adasum && !row.is("compression", "none")) return true;
  if (row.is("op", "adasum") && row.is("embedding", "sparse")) return true;
  // Of deltas no gradient travels: none has a group, and none is skipped.
  if (row.is("op", "deltas") && (!row.is("groups", "none") || row.is("clip", "skip"))) return true;
  // LibTorch has no sparse form of these optimisers, nor of clip_grad_norm_.
  if (!row.is("embedding", "sparse")) return false;
  return (!row.is("inner", "sgd") && !row.is("inner", "adagrad")) || !row.is("clip", "no");
}

bool has_experts(const Row& row) {
  return !row.is("local", "none");
}

int passes_of(const Row& row) {
  return number(row["passes"]);
}

PairsNetImpl::PairsNetImpl(const Row& row, int count, bool in_one_process) {
  first = register_module("first", torch::nn::Linear(5, 7));
  second = register_module("second", torch::nn::Linear(7, 3));
  side = register_module("side", torch::nn::Linear(5, 3));
  never = register_module("never", torch::nn::Linear(2, 2));
  // What Ronde makes dense is dense in one process.
  const bool is_sparse =
      row.is("embedding", in_one_process ? "sparse" : "as_dense") || row.is("embedding", "sparse");
  embedding = register_module(
      "embedding", torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 5).sparse(is_sparse)));
  experts = register_module("experts", torch::nn::ModuleList());
  for (int i = 0; i < count; ++i) experts->push_back(torch::nn::Linear(3, 3));
  to(at::kDouble);
  const torch::NoGradGuard no_grad;
  std::uint64_t seed = 1;
  for (auto& item : named_parameters()) {
    item.value().copy_(normal(item.value().sizes(), seed++) * 0.5);
    if (row.is("hook", "yes") && item.key() == "first.weight") {
      item.value().register_hook([](const at::Tensor& gradient) { return gradient * 2; });
    }
  }
}

at::Tensor PairsNetImpl::forward(const at::Tensor& x, const at::Tensor& words, bool use_side,
                                 int expert) {
  const at::Tensor input = x + embedding->forward(words);
  at::Tensor y = second->forward(torch::tanh(first->forward(input)));
  if (use_side) y = y + side->forward(x);
  return y + torch::tanh(
                 experts->at<torch::nn::LinearImpl>(static_cast<std::size_t>(expert)).forward(y));
}

Names PairsNetImpl::parameters_with(int expert) const {
  Names kept;
  const std::string own = "experts." + std::to_string(expert) + ".";
  for (const auto& item : named_parameters()) {
    const bool is_expert = item.key().rfind("experts.", 0) == 0;
    if (!is_expert || item.key().rfind(own, 0) == 0) kept.insert(item.key(), item.value());
  }
  return kept;
}

at::Tensor loss_of(PairsNet& net, const Row& row, int step, int pass, int rank) {
  const int seed = 1000 * step + 100 * pass + 10 * rank;
  const at::Tensor x = normal({kBatch, 5}, seed + 1);
  const at::Tensor y = normal({kBatch, 3}, seed + 2);
  const at::Tensor words = (normal({kBatch}, seed + 3).abs() * 4).to(at::kLong).clamp(0, 8);
  // Rank 0 alone uses the side branch, and in odd steps nobody does.
  const bool use_side = rank == 0 && step % 2 == 0;
  const int expert = has_experts(row) ? rank : 0;
  return torch::mse_loss(net->forward(x, words, use_side, expert), y);
}

at::Tensor losses_of(PairsNet& net, const Row& row, int step, int rank) {
  at::Tensor loss = torch::zeros({}, at::kDouble);
  for (int pass = 0; pass < passes_of(row); ++pass) {
    loss = loss + loss_of(net, row, step, pass, rank);
  }
  return loss;
}

std::unique_ptr<torch::optim::Optimizer> make_inner(const Row& row, const Names& parameters) {
  using namespace torch::optim;
  const std::string& inner = row["inner"];
  if (inner == "adam") return make_with<Adam>(row, parameters, AdamOptions(0.01));
  if (inner == "adamw") return make_with<AdamW>(row, parameters, AdamWOptions(0.01));
  if (inner == "rmsprop") return make_with<RMSprop>(row, parameters, RMSpropOptions(0.005));
  if (inner == "adagrad") return make_with<Adagrad>(row, parameters, AdagradOptions(0.02));
  return make_with<SGD>(row, parameters, SGDOptions(0.01).momentum(0.5));
}

std::unique_ptr<torch::optim::LRScheduler> make_scheduler(const Row& row,
                                                          torch::optim::Optimizer& inner) {
  if (row.is("scheduler", "none")) return nullptr;
  return std::make_unique<torch::optim::StepLR>(inner, 3, 0.98);
}

void freeze_or_unfreeze(PairsNet& net, const Row& row, int step) {
  if (row.is("frozen", "none")) return;
  const bool is_frozen = row.is("frozen", "thaws") ? step < 3 : step >= 3;
  net->second->bias.requires_grad_(!is_frozen);
}

void clip(PairsNet& net, const Row& row) {
  if (row.is("clip", "no")) return;
  Tensors shared;
  for (const auto& item : net->named_parameters()) {
    if (item.key().rfind("experts.", 0) != 0) shared.push_back(item.value());
  }
  torch::nn::utils::clip_grad_norm_(shared, 0.3);
}

PairsNet train_whole(const Row& row, int ranks, int steps) {
  if (row.is("op", "deltas")) return train_whole_deltas(row, ranks, steps);
  PairsNet net(row, has_experts(row) ? ranks : 1, /*in_one_process=*/true);
  const auto optimizer = make_inner(row, net->named_parameters());
  const auto scheduler = make_scheduler(row, *optimizer);
  const bool is_separate = !row.is("compression", "none") || row.is("op", "adasum");
  for (int step = 0; step < steps; ++step) {
    freeze_or_unfreeze(net, row, step);
    optimizer->zero_grad(row.is("zero_grad", "none"));
    if (is_separate) {
      separate_backward(net, row, ranks, step);
    } else {
      whole_backward(net, row, ranks, step);
    }
    clip(net, row);
    optimizer->step();
    if (scheduler) scheduler->step();
  }
  return net;
}

}  // namespace ronde_test::pairs_test
