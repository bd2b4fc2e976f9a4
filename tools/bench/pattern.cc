// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/pattern.h"

#include "ronde/error.h"
#include "ronde/kernels.h"

namespace ronde::tool {
namespace {

template <typename T>
struct Plain {
  using Stored = T;
  static T stored(int value) { return static_cast<T>(value); }
  static double shown(T value) { return static_cast<double>(value); }
};

/// F16 or BF16.
template <DataType half>
struct Half {
  using Stored = std::uint16_t;
  static Stored stored(int value) {
    const auto full = static_cast<float>(value);
    Stored narrow = 0;
    best_kernels().narrow(&narrow, &full, 1, {.half = half}, Store::Regular);
    return narrow;
  }
  static double shown(Stored value) {
    float full = 0.0F;
    best_kernels().widen(&full, &value, 1, {.half = half}, Store::Regular);
    return static_cast<double>(full);
  }
};

struct Boolean {
  using Stored = std::uint8_t;
  static Stored stored(int value) { return value != 0 ? 1 : 0; }
  static double shown(Stored value) { return value; }
};

/// Calls `action` with the representation of `dtype`.
template <typename Action>
auto with_type(DataType dtype, const Action& action) {
  switch (dtype) {
    case DataType::U8:
      return action(Plain<std::uint8_t>());
    case DataType::I8:
      return action(Plain<std::int8_t>());
    case DataType::I16:
      return action(Plain<std::int16_t>());
    case DataType::I32:
      return action(Plain<std::int32_t>());
    case DataType::I64:
      return action(Plain<std::int64_t>());
    case DataType::F16:
      return action(Half<DataType::F16>());
    case DataType::BF16:
      return action(Half<DataType::BF16>());
    case DataType::F32:
      return action(Plain<float>());
    case DataType::F64:
      return action(Plain<double>());
    case DataType::Bool:
      return action(Boolean());
  }
  throw Error("no element type has the number " + std::to_string(static_cast<int>(dtype)));
}

std::string number_text(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (!text.empty() && text.back() == '.') text.pop_back();
  return text;
}

}  // namespace

void fill(DataType dtype, void* data, std::size_t count, const ElementRule& rule) {
  with_type(dtype, [&](auto type) {
    auto* const elements = static_cast<typename decltype(type)::Stored*>(data);
    for (std::size_t i = 0; i < count; ++i) elements[i] = type.stored(rule(i));
  });
}

std::string difference(DataType dtype, const void* data, std::size_t count,
                       const ElementRule& rule) {
  return with_type(dtype, [&](auto type) -> std::string {
    const auto* const elements = static_cast<const typename decltype(type)::Stored*>(data);
    for (std::size_t i = 0; i < count; ++i) {
      const auto expected = type.stored(rule(i));
      // Bits differ wherever values do, but for the sign of zero, which no rule here makes.
      if (elements[i] == expected) continue;
      return "element " + std::to_string(i) + " is " + number_text(type.shown(elements[i])) +
             " and should be " + number_text(type.shown(expected));
    }
    return {};
  });
}

}  // namespace ronde::tool
