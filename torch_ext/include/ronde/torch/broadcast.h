// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <string>

#include "ronde/process_set.h"

namespace ronde {

/// Gives every rank the root's parameters and buffers, frozen ones included, matched by name; call
/// it before the first forward. Collective: all ranks call it at the same point. The ranks compare
/// names, shapes, dtypes and devices first; if they differ, all throw a UsageError that shows
/// the first difference of each rank, and no tensor is changed.
///
/// All functions here concern the ranks of `process_set` alone, and `root_rank` is one's number in
/// it. A rank outside throws UsageError at once.
void broadcast_parameters(const torch::nn::Module& module, int root_rank = 0,
                          ProcessSet process_set = {});

/// The same for a dictionary, such as `module.named_parameters()`.
void broadcast_parameters(const torch::OrderedDict<std::string, at::Tensor>& tensors,
                          int root_rank = 0, ProcessSet process_set = {});

/// Gives every rank the root's optimiser state (moments, step counts) and options (learning rate,
/// ...), through LibTorch's own save and load: any optimiser that implements them, in any state,
/// also one that has not stepped here. State that the root does not have is dropped. Collective;
/// the optimisers' types, groups and shapes are compared first. An error on one rank, or state at
/// the root that is not of its parameters' shapes, is thrown as a UsageError on all, whose state
/// and options are then as before.
void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root_rank = 0,
                               ProcessSet process_set = {});

}  // namespace ronde
