// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <utility>
#include <vector>

namespace ronde::detail {

using StateSlots = std::vector<std::pair<const char*, at::Tensor*>>;

/// The tensors of `state` that have their parameter's shape, by name; undefined ones are not in
/// use. Empty for classes that are not LibTorch's own, and for LBFGS.
StateSlots shaped_slots(torch::optim::OptimizerParamState& state);

}  // namespace ronde::detail
