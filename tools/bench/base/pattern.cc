// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/base/pattern.h"

#include <sstream>
#include <vector>

#include "ronde/error.h"
#include "ronde/kernels.h"

namespace ronde::tool {
namespace {

/// Calls `action` with a number of the C++ type of `dtype`, which is a real one, no half and no
/// bool.
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
    case DataType::U16:
      return action(std::uint16_t{});
    case DataType::U32:
      return action(std::uint32_t{});
    case DataType::U64:
      return action(std::uint64_t{});
    case DataType::F64:
      return action(double{});
    default:
      return action(float{});
  }
}

/// The real numbers of an element: two of a complex one.
std::size_t parts_of(DataType dtype) {
  return size_of(dtype) / size_of(real_type(dtype));
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
  const std::size_t parts = parts_of(dtype);
  with_type(real_type(dtype), [&]<typename Number>(Number) {
    auto* const numbers = static_cast<Number*>(data);
    for (std::size_t i = 0; i < count * parts; ++i) {
      numbers[i] = static_cast<Number>(rule(i / parts));
    }
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
  const std::size_t parts = parts_of(dtype);
  return with_type(real_type(dtype), [&]<typename Number>(Number) -> std::string {
    const auto* const numbers = static_cast<const Number*>(data);
    for (std::size_t i = 0; i < count * parts; ++i) {
      const auto expected = static_cast<Number>(rule(i / parts));
      if (numbers[i] == expected) continue;
      std::ostringstream text;
      text << "element " << i / parts << " is " << +numbers[i] << " and should be " << +expected;
      return text.str();
    }
    return {};
  });
}

}  // namespace ronde::tool
