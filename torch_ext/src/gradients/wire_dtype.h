// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "ronde/torch/compression.h"

namespace ronde::detail {

/// The type of Compression::fp16() and bf16(); nothing for null and the program's own.
std::optional<DataType> wire_dtype_of(const std::shared_ptr<Compression>& compression);

}  // namespace ronde::detail
