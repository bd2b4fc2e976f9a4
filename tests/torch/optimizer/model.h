// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "pairs.h"
#include "support.h"

namespace ronde_test::pairs_test {

/// The options of DistributedOptimizer, and what programs do with it.
const std::vector<Factor>& optimizer_factors();

/// Rows that LibTorch or Ronde refuse.
bool is_forbidden(const Row& row);

/// What a scaler multiplies losses by.
constexpr double kLossScale = 64.0;

/// Each rank has a part of the model of its own.
bool has_experts(const Row& row);

/// Batches of one rank between two steps of the optimiser.
int passes_of(const Row& row);

/// A little of everything: layers that are used always, on some ranks in some steps, or never; an
/// embedding; and a part that each rank may have of its own. All in f64.
struct PairsNetImpl : torch::nn::Module {
  PairsNetImpl(const Row& row, int experts, bool in_one_process);

  /// `expert`: whose part.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& words, bool use_side, int expert);

  /// Named parameters without those of experts but `expert`.
  Names parameters_with(int expert) const;

  torch::nn::Linear first{nullptr}, second{nullptr}, side{nullptr}, never{nullptr};
  torch::nn::Embedding embedding{nullptr};
  torch::nn::ModuleList experts{nullptr};
};
TORCH_MODULE(PairsNet);

/// The loss of one rank on one of its batches of a step.
at::Tensor loss_of(PairsNet& net, const Row& row, int step, int pass, int rank);

/// The sum of a rank's losses in one step.
at::Tensor losses_of(PairsNet& net, const Row& row, int step, int rank);

std::unique_ptr<torch::optim::Optimizer> make_inner(const Row& row, const Names& parameters);

/// Null: none.
std::unique_ptr<torch::optim::LRScheduler> make_scheduler(const Row& row,
                                                          torch::optim::Optimizer& inner);

/// What happens to the model before a step.
void freeze_or_unfreeze(PairsNet& net, const Row& row, int step);

/// Clips the parameters that all ranks share, where the row says so.
void clip(PairsNet& net, const Row& row);

/// Trains one model on the batches of all ranks, by the definition of the options, without Ronde.
PairsNet train_whole(const Row& row, int ranks, int steps);

/// The same for Adasum of steps: each rank has a model and an inner optimiser of its own, and what
/// their parameters change by is combined in f64.
PairsNet train_whole_deltas(const Row& row, int ranks, int steps);

}  // namespace ronde_test::pairs_test
