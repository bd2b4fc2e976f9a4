// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pairs.h"
#include "support.h"

namespace ronde_test::pairs_test {

/// What a scaler multiplies losses by: an f16 holds any gradient times this.
constexpr double kLossScale = 64.0;

/// Batches of one rank between two steps of the optimiser.
int passes_of(const Row& row);

/// Each rank trains the part of the model that is named so by itself.
bool has_expert(const Row& row);

/// A little of everything: layers that are used always, on some ranks in some steps, or never; an
/// embedding; and a part that each rank may have for itself. All in f64.
struct PairsNetImpl : torch::nn::Module {
  /// `sparse`: gradients of the embedding are.
  PairsNetImpl(const Row& row, int rank, bool sparse);

  at::Tensor forward(const at::Tensor& x, const at::Tensor& words, bool use_side);

  torch::nn::Linear first{nullptr}, second{nullptr}, side{nullptr}, never{nullptr}, expert{nullptr};
  torch::nn::Embedding embedding{nullptr};
};
TORCH_MODULE(PairsNet);

/// The loss of one rank on one of its batches of a step.
at::Tensor loss_of(PairsNet& net, int step, int pass, int rank);

std::unique_ptr<torch::optim::Optimizer> make_inner(const Row& row, const PairsNet& net);

/// Null: none.
std::unique_ptr<torch::optim::LRScheduler> make_scheduler(const Row& row,
                                                          torch::optim::Optimizer& inner);

/// What happens to the model before a step.
void freeze_or_unfreeze(PairsNet& net, const Row& row, int step);

/// Clips the parameters but those of the expert, where the row says so.
void clip(PairsNet& net, const Row& row);

/// What all ranks train in so many steps, by the definition of the options: one rank after the
/// other in this process, without Ronde. Returns the model of `rank`.
PairsNet train_whole(const Row& row, int ranks, int steps, int rank);

}  // namespace ronde_test::pairs_test
