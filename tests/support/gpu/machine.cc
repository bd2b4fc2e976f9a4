// SPDX-License-Identifier: Apache-2.0
#include "tests/support/gpu/machine.h"

#include <cstring>

namespace ronde::test {

void Machine::finish() {
  context->call("waiting", &cuda::DriverApi::stream_synchronize, stream.handle());
}

SharedBytes::SharedBytes(Machine& machine, std::size_t bytes) : block_(machine.context, bytes) {
  std::memset(block_.data(), 0, block_.bytes());
}

SharedBytes::SharedBytes(Machine& machine, const std::vector<std::byte>& values)
    : SharedBytes(machine, values.size()) {
  std::memcpy(block_.data(), values.data(), values.size());
}

bool SharedBytes::equals(const std::vector<std::byte>& values) const noexcept {
  return std::memcmp(block_.data(), values.data(), values.size()) == 0;
}

}  // namespace ronde::test
