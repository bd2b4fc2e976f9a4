// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace ronde {

/// A sentence that says what is wrong; nullopt if nothing is.
using Problem = std::optional<std::string>;

}  // namespace ronde
