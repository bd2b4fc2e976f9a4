// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fakes/fake_cuda.h"
#include "tests/support/gpu/machine.h"

namespace ronde::test {

struct Machine::Driver {
  FakeCuda cuda;
};

Machine::Machine()
    : driver_(std::make_unique<Driver>()),
      context(std::make_shared<cuda::DeviceContext>(driver_->cuda.api(), 0)),
      kernels(context, "an image"),
      stream(context) {}

Machine::~Machine() = default;

int Machine::launches() const {
  return driver_->cuda.calls("cuLaunchKernel");
}

}  // namespace ronde::test
