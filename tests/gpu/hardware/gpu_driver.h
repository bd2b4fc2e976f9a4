// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "backends/gpu/driver/driver_api.h"

namespace ronde::test {

/// The driver of a machine with a GPU; without one the test is skipped, which ends the process.
std::shared_ptr<const cuda::DriverApi> gpu_driver();

/// Ends the process and, with it, the test. `why` begins with "no GPU": by these words ctest knows
/// a test that could not be run (cmake/discover_cases.cmake).
[[noreturn]] void skip_test(const std::string& why);

}  // namespace ronde::test
