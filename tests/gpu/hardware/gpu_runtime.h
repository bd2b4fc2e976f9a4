// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "backends/gpu/driver/driver_api.h"
#include "backends/nccl/nccl_api.h"
#include "tests/support/gpu/gpu_tensor.h"
#include "tests/support/ranks/built_in.h"

namespace ronde::test {

/// The driver of a machine with a GPU; without one the test is skipped, which ends the process.
std::shared_ptr<const cuda::DriverApi> gpu_driver();

/// Ends the process and, with it, the test. `why` begins with "no GPU": by these words ctest knows
/// a test that could not be run (cmake/discover_cases.cmake).
[[noreturn]] void skip_test(const std::string& why);

/// NCCL for so many ranks of this host, which share a GPU if there are fewer; the test is skipped
/// where this NCCL refuses that.
inline void need_nccl(int ranks) {
  const auto driver = gpu_driver();
  int gpus = 0;
  cuda::check(*driver, "counting GPUs", driver->device_count, &gpus);
  const nccl::LoadedNccl nccl = nccl::load_nccl(vendor::dynamic_symbols());
  if (!nccl.api) skip_test("no GPU with NCCL for Ronde: " + nccl.problem);
  if (gpus >= ranks) return;
  if (nccl.version < nccl::kOldestWithSharedGpus) {
    skip_test("no GPU for each rank, and NCCL " + nccl::version_text(nccl.version) +
              " lets none share one");
  }
  ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
}

/// The GPU of this rank, which others may share.
inline ProgramGpu gpu_of(const std::shared_ptr<const cuda::DriverApi>& driver,
                         const Runtime& runtime) {
  int gpus = 0;
  cuda::check(*driver, "counting GPUs", driver->device_count, &gpus);
  return {driver, runtime.topology().local_rank % gpus};
}

}  // namespace ronde::test
