// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/jit/api/module.h>

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

/// The parameters and buffers of a module, by "parameter <name>" and "buffer <name>".
/// @{
NamedTensors tensors_in(const torch::nn::Module& module);
NamedTensors tensors_in(const torch::jit::Module& module);
/// @}

/// Why there is no such rank in the set, or empty.
std::string root_problem(int root_rank, ProcessSet set);

/// broadcast_object on behalf of a function whose texts, and whose operations' names, begin with
/// `subject`. `options.name` is not used.
void broadcast_encoded(const std::string& subject, const ObjectCodec& codec,
                       const BroadcastOptions& options);

/// gather_object, in the same way.
void gather_encoded(const std::string& subject, const ListCodec& codec,
                    const BroadcastOptions& options);

}  // namespace ronde::detail
