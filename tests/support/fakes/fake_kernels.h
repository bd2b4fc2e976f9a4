// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/fakes/fake_cuda.h"

namespace ronde::test {

/// Gives the fake all of Ronde's kernels: their threads run one after the other.
void add_ronde_kernels(FakeCuda& cuda);

}  // namespace ronde::test
