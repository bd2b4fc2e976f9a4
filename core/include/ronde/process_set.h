// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ronde {

/// A set of ranks that run operations among themselves (Runtime::add_process_set). Within a set
/// ranks are numbered by their place in it: roots, peers, splits and results are in that order.
struct ProcessSet {
  std::uint32_t id = 0;
  /// The world that it belongs to: 0 is that of ronde::init(), others are those of World::set().
  /// The number is this process's own.
  std::uint32_t world = 0;

  /// Equal in both fields.
  friend bool operator==(const ProcessSet&, const ProcessSet&) = default;
};

/// The set of all ranks: of ronde::init(), or of the Runtime that is given it.
inline constexpr ProcessSet kGlobalSet{};

}  // namespace ronde
