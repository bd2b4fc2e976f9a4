// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include <string>

#include "ronde/process_set.h"

namespace ronde {

/// Throws UsageError on all ranks of `process_set` unless the parameters of `module` are equal, to
/// the bit, on all of them: the text names the first parameter of each rank that differs. Buffers
/// are not compared, as those of a batch norm are each rank's own. Collective; reads the parameters
/// once, and sends 24 bytes while the ranks agree. Ranks that have joined (ronde::join()) count as
/// equal.
///
/// DistributedOptimizer also checks in its first step, including the options of the inner optimizer
/// (RONDE_CHECK_REPLICAS).
void check_replicas(const torch::nn::Module& module, ProcessSet process_set = {});

/// Compares the tensors of a dictionary, from which the caller may leave out local parameters.
void check_replicas(const torch::OrderedDict<std::string, at::Tensor>& tensors,
                    ProcessSet process_set = {});

}  // namespace ronde
