// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

namespace ronde::test {

/// The group still works.
inline void check_goes_on(Runtime& runtime) {
  std::vector<float> ones(3, 1.0F);
  runtime.submit(sum_request(ones, "goes on")).wait();
  check(ones[2] == static_cast<float>(runtime.topology().size), "the next sum is right");
}

}  // namespace ronde::test
