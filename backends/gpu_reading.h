// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace ronde {

/// What the driver says of a rank's GPU, by names as of `ronde top --json`. What it does not say is
/// left out.
struct GpuReading {
  std::map<std::string, double> gauges;
  std::map<std::string, std::uint64_t> totals;  ///< their rates are shown
};

/// May be called from any thread. Empty: there is no GPU.
using ReadGpu = std::function<GpuReading()>;

}  // namespace ronde
