// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/driver/driver_api.h"

namespace ronde::cuda {

DriverError::DriverError(const DriverApi& api, const char* symbol, Result result,
                         const std::string& doing)
    : Error("CUDA failed while " + doing + ": " + error_text(api, symbol, result)),
      result_(result) {}

LoadedDriver find_driver(const vendor::SymbolLookup& lookup) {
  LoadedDriver driver;
  const auto api = std::make_shared<DriverApi>();
  driver.problem = api->load(lookup, kDriverLibrary);
  if (!driver.problem.empty()) return driver;
  if (const Result result = api->driver_version(&driver.version); result != kSuccess) {
    driver.problem = error_text(*api, api->driver_version.symbol(), result);
  } else if (driver.version < kOldestDriver) {
    driver.problem = "the CUDA driver is of CUDA " + version_text(driver.version) +
                     ", Ronde needs that of " + version_text(kOldestDriver) +
                     " or newer. Install a newer driver";
  } else {
    driver.api = api;
  }
  return driver;
}

LoadedDriver load_driver(const vendor::SymbolLookup& lookup) {
  LoadedDriver driver = find_driver(lookup);
  if (!driver.api) return driver;
  if (const Result result = driver.api->init(0U); result != kSuccess) {
    driver.problem = error_text(*driver.api, driver.api->init.symbol(), result);
    driver.api = nullptr;
  }
  return driver;
}

}  // namespace ronde::cuda
