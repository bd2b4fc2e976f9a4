// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/driver/driver_api.h"

#include <cstdio>

namespace ronde::cuda {
namespace {

std::string uuid_text(const Uuid& uuid) {
  std::string text = "GPU";
  for (std::size_t i = 0; i < uuid.bytes.size(); ++i) {
    std::array<char, 3> hex{};
    std::snprintf(hex.data(), hex.size(), "%02x", static_cast<unsigned>(uuid.bytes[i]));
    const bool group_starts = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    text += (group_starts ? "-" : "") + std::string(hex.data());
  }
  return text;
}

}  // namespace

std::string error_text(const DeviceQueryApi& api, const char* symbol, Result result) {
  if (result == kStubLibrary) {  // it has no texts
    return std::string(symbol) + ": " + kDriverLibrary +
           " is the CUDA Toolkit's stub, for linking only. Let the loader find the driver's, for "
           "example by taking the folder stubs out of LD_LIBRARY_PATH (" +
           std::to_string(result) + ")";
  }
  const auto ask = [result](const auto& function) {
    const char* text = nullptr;
    const bool known = function(result, &text) == kSuccess && text != nullptr;
    return std::string(known ? text : "unknown error");
  };
  return std::string(symbol) + ": " + ask(api.error_name) + ": " + ask(api.error_string) + " (" +
         std::to_string(result) + ")";
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string describe_gpu(const DeviceQueryApi& api, int index, Gpu& gpu) {
  std::string problem;
  const auto ask = [&](const auto& function, auto... arguments) {
    if (!problem.empty()) return;
    const Result result = function(arguments...);
    if (result != kSuccess) problem = error_text(api, function.symbol(), result);
  };
  DeviceHandle device = 0;
  std::array<char, 256> name{};
  std::array<char, 32> pci_id{};
  std::size_t memory = 0;
  Uuid uuid{};
  ask(api.device_get, &device, index);
  ask(api.device_name, name.data(), static_cast<int>(name.size()), device);
  ask(api.device_memory, &memory, device);
  ask(api.device_uuid, &uuid, device);
  ask(api.device_pci_id, pci_id.data(), static_cast<int>(pci_id.size()), device);
  if (problem.empty()) gpu = {index, name.data(), memory, uuid_text(uuid), pci_id.data()};
  return problem;
}

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
