// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "forms.h"

namespace ronde::test {

/// In what a result differs from what the inputs make, computed without Ronde; empty if in nothing.
std::string difference(const Case& row, const Place& place, const std::vector<Elements>& inputs,
                       const Elements& result);

}  // namespace ronde::test
