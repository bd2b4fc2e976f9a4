// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/gpu_backends.h"

#include <algorithm>

#include "backends/gpu/kernels/kernel_image.h"

namespace ronde::cuda {
namespace {

constexpr int kMajor = 1000;          ///< the weight of the major version in CUDA's versions
constexpr int kLeastCapability = 80;  ///< the kernels are compiled for it and newer ones

/// The best of the visible GPUs: the rank's own is not known yet. A GPU that cannot be asked
/// passes.
int best_capability(const DriverApi& api, int count) {
  int best = 0;
  for (int index = 0; index < count; ++index) {
    DeviceHandle device = 0;
    int major = 0;
    int minor = 0;
    const bool is_known =
        api.device_get(&device, index) == kSuccess &&
        api.device_attribute(&major, kAttributeComputeCapabilityMajor, device) == kSuccess &&
        api.device_attribute(&minor, kAttributeComputeCapabilityMinor, device) == kSuccess;
    best = std::max(best, is_known ? 10 * major + minor : kLeastCapability);
  }
  return best;
}

}  // namespace

std::string why_no_gpu(const LoadedDriver& driver, const void* image) {
  if (!driver.api) return driver.problem;
  int count = 0;
  const auto& ask = driver.api->device_count;
  if (const Result result = ask(&count); result != kSuccess) {
    return error_text(*driver.api, ask.symbol(), result);
  }
  if (count == 0) return "no GPU is visible: there is none, or CUDA_VISIBLE_DEVICES hides all";
  if (image == nullptr) return kNoKernels;
  const int toolkit = image == kernel_image() ? kernel_toolkit() : 0;
  return why_no_kernels(best_capability(*driver.api, count), driver.version, toolkit);
}

std::string why_no_kernels(int capability, int driver, int toolkit) {
  if (driver / kMajor < toolkit) {
    return "the kernels of this build are of the CUDA Toolkit " + std::to_string(toolkit) +
           ", which a driver of CUDA " + version_text(driver) +
           " does not load. Install a newer driver, or build Ronde with an older toolkit";
  }
  if (capability < kLeastCapability) {
    return "the GPU is of compute capability " + std::to_string(capability / 10) + "." +
           std::to_string(capability % 10) + ", and Ronde's kernels need 8.0 or newer";
  }
  return {};
}

Capabilities gpu_capabilities() {
  Capabilities capabilities;
  capabilities.dtypes.set();
  for (const DataType dtype : {DataType::U16, DataType::U32, DataType::U64}) {
    capabilities.dtypes.reset(static_cast<std::size_t>(dtype));  // no kernel reduces it
  }
  capabilities.set_wire_dtypes();
  capabilities.device = DeviceKind::Cuda;
  capabilities.wants_packed = false;
  capabilities.widen_halves = false;
  capabilities.waiting = Waiting::Pause;
  return capabilities;
}

}  // namespace ronde::cuda
