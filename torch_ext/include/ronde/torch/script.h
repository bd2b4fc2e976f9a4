// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/ordered_dict.h>

#include <string>

#include "ronde/process_set.h"

/// Functions for models in TorchScript (torch::jit::load(), Module::define()) that correspond to
/// those for torch::nn::Module. A Checkpoint accepts such models, too.
namespace ronde {

/// Returns the parameters of a scripted model, each once, by name, for an optimizer and
/// DistributedOptimizer. A frozen model (torch::jit::freeze()) has none.
torch::OrderedDict<std::string, at::Tensor> named_parameters(const torch::jit::Module& module);

/// Broadcasts the parameters and buffers of a scripted model.
void broadcast_parameters(const torch::jit::Module& module, int root_rank = 0,
                          ProcessSet process_set = {});

/// Compares the parameters of a scripted model.
void check_replicas(const torch::jit::Module& module, ProcessSet process_set = {});

}  // namespace ronde
