// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

namespace ronde::test {

// The hosts of three ranks: a leader speaks for others, or not.
inline const std::vector<int> kOneHost = {0, 0, 0};
inline const std::vector<int> kLeaderAndOne = {0, 1, 1};

}  // namespace ronde::test
