// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "ronde/dtype.h"

namespace ronde::tool {

/// Value of element `index` of `rank` where a result is checked: 0, 1 or 2, so that sums over up
/// to 128 ranks are exact in every type but the bytes, which wrap alike on both sides.
inline int pattern(int rank, std::size_t index) {
  const std::uint64_t mixed = static_cast<std::uint64_t>(index) * 0x9e3779b97f4a7c15U;
  return static_cast<int>(((mixed >> 40) + static_cast<std::uint64_t>(rank)) % 3);
}

/// The value of an element, by its index.
using ElementRule = std::function<int(std::size_t index)>;

/// Writes `rule` to `count` elements.
void fill(DataType dtype, void* data, std::size_t count, const ElementRule& rule);

/// Compares every element with the value of `rule`. Returns a text about the first that differs,
/// such as "element 17 is 3 and should be 2"; empty if none does.
std::string difference(DataType dtype, const void* data, std::size_t count,
                       const ElementRule& rule);

}  // namespace ronde::tool
