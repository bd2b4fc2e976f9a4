// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/driver_api.h"

#include <utility>

namespace ronde::cuda {

DriverError::DriverError(const DriverApi& api, const char* symbol, Result result,
                         const std::string& doing)
    : Error("CUDA failed while " + doing + ": " + symbol + ": " + error_text(api, result)),
      result_(result) {}

LoadedDriver load_driver(const vendor::SymbolLookup& lookup) {
  LoadedDriver driver;
  const auto api = std::make_shared<DriverApi>();
  driver.problem = api->load(lookup, kDriverLibrary);
  if (!driver.problem.empty()) return driver;
  const auto ask = [&](const auto& function, auto... arguments) {
    const Result result = function(arguments...);
    if (result == kSuccess) return true;
    driver.problem = std::string(function.symbol()) + ": " + error_text(*api, result);
    return false;
  };
  if (!ask(api->driver_version, &driver.version)) return driver;
  if (driver.version < kOldestDriver) {
    driver.problem = "the CUDA driver is of CUDA " + version_text(driver.version) +
                     ", Ronde needs that of " + version_text(kOldestDriver) +
                     " or newer. Install a newer driver";
    return driver;
  }
  if (ask(api->init, 0U)) driver.api = api;
  return driver;
}

}  // namespace ronde::cuda
