// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/gpu_backends.h"

namespace ronde::cuda {

std::string why_no_gpu(const LoadedDriver& driver, const void* image) {
  if (!driver.api) return driver.problem;
  int count = 0;
  const auto& ask = driver.api->device_count;
  if (const Result result = ask(&count); result != kSuccess) {
    return std::string(ask.symbol()) + ": " + error_text(*driver.api, result);
  }
  if (count == 0) return "no GPU is visible: there is none, or CUDA_VISIBLE_DEVICES hides all";
  if (image != nullptr) return {};
  return "this build of Ronde has no kernels for GPUs, as nvcc was not found. Build it with the "
         "CUDA Toolkit 12 or 13";
}

Capabilities gpu_capabilities() {
  Capabilities capabilities;
  capabilities.dtypes.set();
  capabilities.set_wire_dtypes();
  capabilities.device = DeviceKind::Cuda;
  capabilities.wants_packed = false;
  capabilities.widen_halves = false;
  capabilities.tells_progress = true;
  return capabilities;
}

}  // namespace ronde::cuda
