// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace example {

/// Where scripts/deps.sh puts the handwritten digits. They need not be there.
std::filesystem::path digits_path();

}  // namespace example
