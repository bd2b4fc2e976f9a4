// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace ronde {

/// The name of a value of an enumeration that counts from 0.
template <typename Enum, std::size_t kCount>
constexpr std::string_view enum_name(const std::array<std::string_view, kCount>& names, Enum value,
                                     std::string_view unknown) noexcept {
  const auto index = static_cast<std::size_t>(value);
  return index < kCount ? names[index] : unknown;
}

}  // namespace ronde
