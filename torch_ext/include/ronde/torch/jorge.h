// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ronde/process_set.h"

namespace ronde {

/// Options of a parameter group of Jorge. Those of a well-tuned SGD with momentum carry over: its
/// learning rate and momentum as they are, its weight decay divided by 1 - momentum.
struct JorgeOptions : torch::optim::OptimizerCloneableOptions<JorgeOptions> {
  /// `lr`: the learning rate.
  JorgeOptions(double lr) : lr_(lr) {}
  TORCH_ARG(double, lr);              ///< learning rate
  TORCH_ARG(double, momentum) = 0.9;  ///< of SGD, and of preconditioned gradients
  /// Decoupled from the gradient, as AdamW's.
  TORCH_ARG(double, weight_decay) = 0;
  /// Steps from one refresh of the preconditioners to the next; the first step refreshes them.
  TORCH_ARG(std::int64_t, refresh_every) = 10;

 public:
  /// As those of LibTorch's options.
  /// @{
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr(); }
  void set_lr(double value) override { lr(value); }
  /// @}
};

/// What Jorge keeps of a parameter.
struct JorgeParamState : torch::optim::OptimizerCloneableParamState<JorgeParamState> {
  TORCH_ARG(std::int64_t, step) = 0;             ///< steps with a gradient
  TORCH_ARG(at::Tensor, momentum_buffer);        ///< of gradients, as SGD's
  TORCH_ARG(at::Tensor, preconditioned_buffer);  ///< momentum of preconditioned gradients
  TORCH_ARG(at::Tensor, left);   ///< [rows, rows]; undefined where there is none, as the others
  TORCH_ARG(at::Tensor, right);  ///< [columns, columns]

 public:
  /// As those of LibTorch's states.
  /// @{
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  /// @}
};

/// The second-order optimizer of S. Singh, Z. Sating and A. Bhatele, "Jorge: Approximate
/// Preconditioning for GPU-efficient Second-order Optimization", 2023,
/// https://arxiv.org/abs/2310.12298: Shampoo without matrix inverses. Used as LibTorch's optimizers
/// are, alone or in a DistributedOptimizer:
///
///     ronde::Jorge jorge(net->parameters(), ronde::JorgeOptions(0.05).refresh_every(20));
///     ronde::DistributedOptimizer optimizer(jorge, net->named_parameters());
///
/// A gradient G is taken as a matrix of its first dimension by all others. L and R, at first the
/// identity, follow the inverse fourth roots of the averages of G G^T and G^T G by a binomial
/// series (docs/notes/jorge.md). The step has the direction of the momentum of L G R and the length
/// that SGD's momentum would have. Parameters of one dimension are stepped as by SGD with momentum.
/// A side of length 1, or of more than 1024, has no preconditioner.
///
/// The ranks of the process set divide the preconditioners by the work of their refresh: each
/// refreshes its share and broadcasts it. Their gradients must be equal, as DistributedOptimizer
/// makes them, and none may have joined (ronde::join()). Parameters that a rank trains by itself
/// belong into a Jorge of a set with that rank alone.
///
/// Thread-safety: none, as LibTorch's optimizers.
class Jorge : public torch::optim::Optimizer {
 public:
  /// `process_set`: the ranks that train these parameters alike, all by default; this one is among
  /// them. They construct their optimizers in the same order. Throws UsageError for options out of
  /// range, and on a rank outside the set.
  explicit Jorge(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                 JorgeOptions defaults, ProcessSet process_set = {});
  /// As the one above, with one group.
  explicit Jorge(std::vector<at::Tensor> parameters, JorgeOptions defaults,
                 ProcessSet process_set = {})
      : Jorge({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults),
              process_set) {}

  /// Steps the parameters that have a gradient. Collective where preconditioners are refreshed.
  /// Throws UsageError, before anything is changed, for a gradient that is not dense f32 or f64,
  /// and what a broadcast throws.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// As those of LibTorch's optimizers: options and states.
  /// @{
  void save(torch::serialize::OutputArchive& archive) const override {
    torch::optim::serialize<JorgeParamState, JorgeOptions>(archive, *this);
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::optim::serialize<JorgeParamState, JorgeOptions>(archive, *this);
  }
  /// @}

 private:
  ProcessSet set_;
  std::string name_;
};

}  // namespace ronde
