// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace ronde {

/// What the driver reports about a rank's GPU, by the names of `ronde top --json`. Values that the
/// driver does not know are left out.
struct GpuReading {
  std::map<std::string, double> gauges;
  std::map<std::string, std::uint64_t> totals;  ///< their rates are shown
};

/// Reads the GPU; may be called from any thread. Empty: there is no GPU.
using ReadGpu = std::function<GpuReading()>;

}  // namespace ronde
