// SPDX-License-Identifier: Apache-2.0
#pragma once

// On the include path where Catch2 is version 3, which has no single header. The tests are written
// for version 2 (Debian 12's); this file gives them its names.
#include <catch2/catch_all.hpp>
#include <string>

using Catch::Approx;

namespace Catch {

using Matchers::Matches;
using Matchers::StartsWith;

inline auto Contains(const std::string& part) {
  return Matchers::ContainsSubstring(part);
}

}  // namespace Catch
