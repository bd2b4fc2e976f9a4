// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <string>

#include "ronde/process_set.h"

namespace ronde {

/// Copies the root's parameters and buffers, of any dtype and also frozen ones, to every rank,
/// matched by name; call it before the first forward. Expanded tensors keep their memory, and must
/// be expanded alike on all ranks. Collective. The ranks compare names, shapes, dtypes and devices
/// first; if they differ, all throw a UsageError that shows the first difference of each rank, and
/// no tensor is changed.
///
/// In all functions here `root_rank` is a number within `process_set`. A rank outside the set
/// throws UsageError at once.
void broadcast_parameters(const torch::nn::Module& module, int root_rank = 0,
                          ProcessSet process_set = {});

/// Broadcasts the tensors of a dictionary, such as `module.named_parameters()`.
void broadcast_parameters(const torch::OrderedDict<std::string, at::Tensor>& tensors,
                          int root_rank = 0, ProcessSet process_set = {});

/// Copies the root's optimizer state (moments, step counts) and options (learning rate) to every
/// rank, through LibTorch's save and load, which the optimizer must implement; it need not have
/// stepped here. State that the root lacks is dropped. Collective; the ranks compare types, groups
/// and shapes first. An error on one rank, or state at the root that does not fit its parameters,
/// is a UsageError on all ranks, whose state and options stay unchanged.
void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root_rank = 0,
                               ProcessSet process_set = {});

}  // namespace ronde
