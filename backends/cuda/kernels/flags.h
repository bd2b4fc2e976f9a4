// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "segments.h"

// Flags by which kernels on different GPUs are ordered.

namespace ronde::cuda::kernels {

/// Words that a kernel writes for others, or waits for.
struct FlagArguments {
  std::uint32_t* flags[kMostInputs];
  std::uint32_t count;
  std::uint32_t value;
  const std::uint32_t* released;  ///< of a wait: not 0 ends it
  std::int64_t limit_ns;          ///< likewise
};

/// Flags count, and may go past the largest number: which of the two is ahead shows while they are
/// less than 2^31 apart.
RONDE_EVERYWHERE bool has_reached(std::uint32_t flag, std::uint32_t value) {
  return flag - value < (std::uint32_t{1} << 31);
}

}  // namespace ronde::cuda::kernels
