// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace ronde {

/// The text of the exception being handled, never empty. For use inside a catch-all handler only:
/// users' callbacks and backends may throw what does not derive from std::exception.
inline std::string exception_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    return *error.what() != '\0' ? error.what() : "unknown error";
  } catch (...) {
    return "an exception that does not derive from std::exception";
  }
}

}  // namespace ronde
