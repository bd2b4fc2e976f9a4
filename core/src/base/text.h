// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <charconv>
#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace ronde {

/// A sentence that says what is wrong; nullopt if nothing is.
using Problem = std::optional<std::string>;

/// Returns the text of the exception being handled, never empty. For use inside a catch-all handler
/// only: callbacks of users and backends may throw what does not derive from std::exception.
inline std::string exception_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    return *error.what() != '\0' ? error.what() : "unknown error";
  } catch (...) {
    return "an exception that does not derive from std::exception";
  }
}

/// Returns the text of `error`, which is not null.
inline std::string exception_text(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (...) {
    return exception_text();
  }
}

/// Parses a number that is the whole text: no sign but a minus, no blank, nothing behind it.
template <typename Number>
std::optional<Number> whole_number(std::string_view text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || stop != end) return std::nullopt;
  return value;
}

/// Returns the name of a value of an enumeration that counts from 0.
template <typename Enum, std::size_t kCount>
constexpr std::string_view enum_name(const std::array<std::string_view, kCount>& names, Enum value,
                                     std::string_view unknown) noexcept {
  const auto index = static_cast<std::size_t>(value);
  return index < kCount ? names[index] : unknown;
}

}  // namespace ronde
