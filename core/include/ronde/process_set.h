// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ronde {

/// A subset of the ranks that runs collectives among itself. Only the set of all ranks exists so
/// far; an operation that names another one is refused.
struct ProcessSet {
  std::uint32_t id = 0;

  friend bool operator==(const ProcessSet&, const ProcessSet&) = default;
};

inline constexpr ProcessSet kGlobalSet{};

}  // namespace ronde
