// SPDX-License-Identifier: Apache-2.0
// What DistributedOptimizer does with Adasum of steps, in one process.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "adasum.h"
#include "model.h"

namespace ronde_test::pairs_test {
namespace {

using Optimizers = std::vector<std::unique_ptr<torch::optim::Optimizer>>;

/// The rank that has the parameter for itself; -1: all have it.
int owner_of(const Row& row, const std::string& name) {
  const std::string experts = "experts.";
  if (!has_experts(row) || name.rfind(experts, 0) != 0) return -1;
  return std::stoi(name.substr(experts.size()));
}

/// Passes within no_sync() are not counted: there the program divides what travels.
bool divides_gradients(const Row& row) {
  return row.is("average_passes", "yes") && !row.is("calls", "no_sync");
}

double scale_of_deltas(const Row& row) {
  double scale = row.is("scales", "both") ? 0.5 * 3.0 : 1.0;
  if (row.is("average_passes", "yes") && !divides_gradients(row)) scale /= passes_of(row);
  return scale;
}

Tensors copies_of(const PairsNet& net) {
  Tensors copies;
  for (const at::Tensor& parameter : net->parameters()) {
    copies.push_back(parameter.detach().clone());
  }
  return copies;
}

/// All nets get the change that Adasum makes of theirs, or, of a part of a rank's own, that rank's.
void combine(std::vector<PairsNet>& nets, const Row& row, const Tensors& before) {
  const torch::NoGradGuard no_grad;
  const auto named = nets.front()->named_parameters();
  for (std::size_t i = 0; i < before.size(); ++i) {
    const int owner = owner_of(row, named[i].key());
    at::Tensor after;
    if (owner >= 0) {
      after = nets[static_cast<std::size_t>(owner)]->parameters()[i].clone();
    } else {
      Tensors deltas;
      for (PairsNet& net : nets) deltas.push_back(net->parameters()[i] - before[i]);
      if (row.is("set", "reversed")) std::reverse(deltas.begin(), deltas.end());
      // Adasum of multiples is a multiple of it.
      after = before[i] + adasum(deltas) * scale_of_deltas(row);
    }
    for (PairsNet& net : nets) net->parameters()[i].copy_(after);
  }
}

void step_of_rank(PairsNet& net, const Row& row, int step, int rank,
                  torch::optim::Optimizer& inner) {
  freeze_or_unfreeze(net, row, step);
  inner.zero_grad(row.is("zero_grad", "none"));
  const double weight = divides_gradients(row) ? 1.0 / passes_of(row) : 1.0;
  (losses_of(net, row, step, rank) * weight).backward();
  clip(net, row);
  inner.step();
}

}  // namespace

PairsNet train_whole_deltas(const Row& row, int ranks, int steps) {
  std::vector<PairsNet> nets;
  Optimizers inner;
  std::vector<std::unique_ptr<torch::optim::LRScheduler>> schedulers;
  for (int rank = 0; rank < ranks; ++rank) {
    nets.emplace_back(row, has_experts(row) ? ranks : 1, /*in_one_process=*/true);
    inner.push_back(make_inner(row, nets.back()->parameters_with(has_experts(row) ? rank : 0)));
    schedulers.push_back(make_scheduler(row, *inner.back()));
  }
  for (int step = 0; step < steps; ++step) {
    const Tensors before = copies_of(nets.front());
    for (int rank = 0; rank < ranks; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      step_of_rank(nets[r], row, step, rank, *inner[r]);
      if (schedulers[r]) schedulers[r]->step();
    }
    combine(nets, row, before);
  }
  return nets.front();
}

}  // namespace ronde_test::pairs_test
