// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <cstddef>
#include <string>
#include <vector>

#include "ronde/torch/distributed_optimizer.h"

// Checks and matches the arguments of a DistributedOptimizer.
namespace ronde::detail {

struct NamedParameter {
  std::string name;
  at::Tensor parameter;
  bool is_local = false;  ///< its gradient is not reduced
  bool is_sparse = false;
  int group = -1;  ///< in which its gradient is reduced
};

/// Returns the parameters of `inner` behind the first `known`, in its order, with their names: the
/// first name of a tensor that has several (tied weights). Throws UsageError if one has no name or
/// occurs twice.
std::vector<NamedParameter> match_parameters(
    const torch::optim::Optimizer& inner, std::size_t known,
    const torch::OrderedDict<std::string, at::Tensor>& named_parameters);

/// Throws UsageError for options that are invalid with this optimizer.
void check_options(const torch::optim::Optimizer& inner,
                   const DistributedOptimizerOptions& options);

/// Marks the parameters that the options list. Throws UsageError if one is in two groups, is local
/// and in a group, or, with `all`, is unknown.
void apply_options(std::vector<NamedParameter>& parameters,
                   const DistributedOptimizerOptions& options, bool all);

/// Describes options and parameters that must be equal on all ranks, a line each; local parameters
/// need not be.
std::vector<std::string> state_parameters(const torch::optim::Optimizer& inner,
                                          const std::vector<NamedParameter>& parameters,
                                          const DistributedOptimizerOptions& options);

}  // namespace ronde::detail
