// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/ordered_dict.h>

#include <string>

#include "ronde/process_set.h"

/// Models in TorchScript (torch::jit::load(), Module::define()): what the rest of the interface
/// does for torch::nn::Module. A Checkpoint takes them as any other object.
namespace ronde {

/// The parameters of a scripted model, each once, by the names that it has there: for the optimizer
/// that steps them, and for DistributedOptimizer. A frozen model (torch::jit::freeze()) has none.
torch::OrderedDict<std::string, at::Tensor> named_parameters(const torch::jit::Module& module);

/// broadcast_parameters() of its parameters and buffers.
void broadcast_parameters(const torch::jit::Module& module, int root_rank = 0,
                          ProcessSet process_set = {});

/// check_replicas() of its parameters.
void check_replicas(const torch::jit::Module& module, ProcessSet process_set = {});

}  // namespace ronde
