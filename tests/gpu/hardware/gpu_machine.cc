// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <string>

#include "backends/gpu/kernels/kernel_image.h"
#include "backends/launcher.h"
#include "tests/gpu/hardware/gpu_runtime.h"
#include "tests/support/gpu/machine.h"

namespace ronde::test {
namespace {

/// Whether a launcher started this process.
bool is_launched() {
  const EnvironmentLookup variables = process_environment();
  for (const char* const name :
       {"PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID", "RANK"}) {
    if (detail::number_in(variables, name)) return true;
  }
  return false;
}

[[noreturn]] void skip(const std::string& why) {
  skip_test("no GPU for Ronde: " + why);
}

}  // namespace

void skip_test(const std::string& why) {
  std::printf("skipped: %s\n", why.c_str());
  std::fflush(stdout);
  // All ranks of a launcher come here, which kills the others once one has failed, and then may not
  // come to print these words.
  std::_Exit(is_launched() ? EXIT_SUCCESS : EXIT_FAILURE);
}

std::shared_ptr<const cuda::DriverApi> gpu_driver() {
  const cuda::LoadedDriver driver = cuda::load_driver(vendor::dynamic_symbols());
  if (!driver.api) skip(driver.problem);
  int count = 0;
  if (driver.api->device_count(&count) != cuda::kSuccess || count == 0) skip("none is visible");
  if (cuda::kernel_image() == nullptr) skip("it was built without kernels, as there was no nvcc");
  return driver.api;
}

std::shared_ptr<const cuda::DriverApi> machine_driver() {
  return gpu_driver();
}

const void* machine_kernels() {
  return cuda::kernel_image();
}

}  // namespace ronde::test
