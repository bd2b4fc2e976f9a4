// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace ronde::tool {

/// The choice for each size, of which one is a list of the times of all choices: those whose times
/// are shortest together, where each change from one size to the next costs as much as if the
/// logarithm of some time were `price` larger. So noise makes no rules.
std::vector<std::size_t> smooth_choices(const std::vector<std::vector<double>>& times,
                                        double price);

}  // namespace ronde::tool
