// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fakes/fake_cuda.h"
#include "tests/support/gpu/machine.h"

namespace ronde::test {

std::shared_ptr<const cuda::DriverApi> machine_driver() {
  struct Driver {
    FakeCuda cuda;
    std::shared_ptr<const cuda::DriverApi> api = cuda.api();
  };
  const auto driver = std::make_shared<Driver>();
  return {driver, driver->api.get()};
}

const void* machine_kernels() {
  return "an image";
}

}  // namespace ronde::test
