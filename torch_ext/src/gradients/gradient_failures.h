// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "torch_ext/src/common/tensor_request.h"

// Note [A rank that cannot do its part] in gradient_reducer.h.
namespace ronde::detail {

/// Stands for the operation that this rank cannot begin: agrees with none that another rank submits
/// under the name, and carries no data.
Prepared prepare_refusal(const std::string& name, at::Device device, ProcessSet set,
                         std::chrono::nanoseconds timeout);

/// Whether the engine's text names such an operation on some rank.
bool is_refusal_text(const std::string& text);

}  // namespace ronde::detail
