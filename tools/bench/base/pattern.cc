// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/base/pattern.h"

#include <sstream>
#include <vector>

#include "ronde/error.h"
#include "ronde/kernels.h"

namespace ronde::tool {
namespace {

/// Calls `action` with a number of the C++ type of `dtype`, which is no half type and no bool.
template <typename Action>
auto with_type(DataType dtype, const Action& action) {
  switch (dtype) {
    case DataType::U8:
      return action(std::uint8_t{});
    case DataType::I8:
      return action(std::int8_t{});
    case DataType::I16:
      return action(std::int16_t{});
    case DataType::I32:
      return action(std::int32_t{});
    case DataType::I64:
      return action(std::int64_t{});
    case DataType::F64:
      return action(double{});
    default:
      return action(float{});
  }
}

}  // namespace

void fill(DataType dtype, void* data, std::size_t count, const ElementRule& rule) {
  if (dtype == DataType::Bool) {
    return fill(DataType::U8, data, count, [&](std::size_t i) { return rule(i) != 0; });
  }
  if (is_half(dtype)) {
    std::vector<float> full(count);
    fill(DataType::F32, full.data(), count, rule);
    best_kernels().narrow(data, full.data(), count, {.half = dtype}, Store::Regular);
    return;
  }
  with_type(dtype, [&]<typename Number>(Number) {
    auto* const elements = static_cast<Number*>(data);
    for (std::size_t i = 0; i < count; ++i) elements[i] = static_cast<Number>(rule(i));
  });
}

std::string difference(DataType dtype, const void* data, std::size_t count,
                       const ElementRule& rule) {
  if (dtype == DataType::Bool) {
    return difference(DataType::U8, data, count, [&](std::size_t i) { return rule(i) != 0; });
  }
  if (is_half(dtype)) {
    std::vector<float> full(count);
    best_kernels().widen(full.data(), data, count, {.half = dtype}, Store::Regular);
    return difference(DataType::F32, full.data(), count, rule);
  }
  return with_type(dtype, [&]<typename Number>(Number) -> std::string {
    const auto* const elements = static_cast<const Number*>(data);
    for (std::size_t i = 0; i < count; ++i) {
      const auto expected = static_cast<Number>(rule(i));
      if (elements[i] == expected) continue;
      std::ostringstream text;
      text << "element " << i << " is " << +elements[i] << " and should be " << +expected;
      return text.str();
    }
    return {};
  });
}

}  // namespace ronde::tool
