// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <string>

#include "torch_ext/src/common/tensor_request.h"

// Note [A rank that cannot do its part] in gradient_reducer.h.
namespace ronde::detail {

/// This rank's part of an operation of the parameter that it cannot begin because of `error`: the
/// other ranks are told why, and what to do.
Prepared prepare_refusal(const std::string& name, const at::Tensor& parameter, ProcessSet set,
                         std::chrono::nanoseconds timeout, const std::exception_ptr& error);

}  // namespace ronde::detail
