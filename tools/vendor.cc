// SPDX-License-Identifier: Apache-2.0
#include "tools/vendor.h"

#include <utility>

#include "backends/nccl/nccl_api.h"

namespace ronde::tool {

CudaReport ask_cuda(const vendor::SymbolLookup& lookup) {
  CudaReport report;
  cuda::DeviceQueryApi api;
  report.driver.remark = api.load(lookup, cuda::kDriverLibrary);
  if (!report.driver.remark.empty()) return report;
  report.driver.found = true;
  const auto ask = [&](const auto& function, auto... arguments) {
    const cuda::Result result = function(arguments...);
    if (result == cuda::kSuccess) return true;
    report.driver.remark = error_text(api, function.symbol(), result);
    return false;
  };
  int version = 0;
  if (!ask(api.driver_version, &version)) return report;
  report.driver.version = cuda::version_text(version);
  int count = 0;
  if (!ask(api.init, 0U) || !ask(api.device_count, &count)) return report;
  for (int index = 0; index < count; ++index) {
    cuda::Gpu gpu;
    report.driver.remark = describe_gpu(api, index, gpu);
    if (!report.driver.remark.empty()) return report;
    report.gpus.push_back(std::move(gpu));
  }
  return report;
}

VendorLibrary ask_nccl(const vendor::SymbolLookup& lookup) {
  const nccl::LoadedNccl loaded = nccl::load_nccl(lookup);
  return {.found = loaded.was_found,
          .version = loaded.version > 0 ? nccl::version_text(loaded.version) : "",
          .remark = loaded.problem};
}

}  // namespace ronde::tool
