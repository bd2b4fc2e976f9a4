// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>

#include "tools/prof/base/files.h"

namespace ronde::prof {

/// Reads the flight recorder's dumps of all ranks and prints who keeps whom waiting. A UsageError
/// says what cannot be read.
void print_hang(const fs::path& folder, std::ostream& out);

}  // namespace ronde::prof
