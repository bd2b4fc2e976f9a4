// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ronde/process_set.h"
#include "ronde/torch/object_codec.h"

namespace ronde::detail {

/// Returns the text of whatever `function` throws, without LibTorch's stack trace and without
/// this rank's number in front; empty if and only if it succeeds. A GroupError passes.
std::string problem_of(const std::function<void()>& function);

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Returns the parameters and buffers of a module, by "parameter <name>" and "buffer <name>".
/// @{
NamedTensors tensors_in(const torch::nn::Module& module);
NamedTensors tensors_in(const torch::jit::Module& module);
/// @}

/// Returns why the set has no such rank; empty if it has.
std::string root_problem(int root_rank, ProcessSet set);

/// Implements broadcast_object for a function whose texts and names of operations begin with
/// `subject`. `options.name` is not used.
void broadcast_encoded(const std::string& subject, const ObjectCodec& codec,
                       const BroadcastOptions& options);

/// Implements gather_object likewise.
void gather_encoded(const std::string& subject, const ListCodec& codec,
                    const BroadcastOptions& options);

using StateSlots = std::vector<std::pair<const char*, at::Tensor*>>;

/// Returns the tensors of `state` that have their parameter's shape, by name; undefined ones are
/// unused. Empty for classes that are not LibTorch's own, and for LBFGS.
StateSlots shaped_slots(torch::optim::OptimizerParamState& state);

}  // namespace ronde::detail
