// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace ronde::tool {

/// Options of `ronde tune --collectives`.
struct CollectiveTuningOptions {
  std::uint64_t min_bytes = 256;
  std::uint64_t max_bytes = std::uint64_t{16} << 20;
  std::string out = "ronde_tuned.json";  ///< the file for RONDE_TUNED
};

/// Measures the algorithms of collectives between the ranks that the launcher has started, over
/// the fabric of the job, and writes rules for RONDE_ALGORITHMS to the file. Collective; returns
/// the exit code.
int tune_collectives(const CollectiveTuningOptions& options);

}  // namespace ronde::tool
