// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "backends/cuda/driver_api.h"

namespace ronde::test {

/// The driver of a machine with a GPU; without one the test is skipped, which ends the process.
std::shared_ptr<const cuda::DriverApi> gpu_driver();

}  // namespace ronde::test
