// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ronde {

/// Some ranks that run operations among themselves (Runtime::add_process_set). Within a set ranks
/// are numbered by their place in it: roots, peers, splits and results are in that order.
struct ProcessSet {
  std::uint32_t id = 0;

  /// Equal numbers.
  friend bool operator==(const ProcessSet&, const ProcessSet&) = default;
};

/// The set of all ranks.
inline constexpr ProcessSet kGlobalSet{};

}  // namespace ronde
