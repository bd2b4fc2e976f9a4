// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "c_api/src/errors.h"

namespace ronde::c {

/// A struct of the caller's, which begins with its size, as this version's: an older one, which is
/// smaller, takes the fields that it lacks from `defaults`; those that a newer one has beyond must
/// be zero. `type` is its name.
template <typename Struct>
Struct known_part(const Struct& given, Struct defaults, const std::string& type) {
  std::size_t size = 0;
  std::memcpy(&size, &given, sizeof(size));
  if (size < sizeof(size)) {
    throw Failure(RONDE_E_INVALID_ARGUMENT,
                  "struct_size of a " + type + " is not set: it is sizeof(" + type + ")");
  }
  std::memcpy(static_cast<void*>(&defaults), &given, std::min(size, sizeof(Struct)));
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&given);
  for (std::size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] == 0) continue;
    throw Failure(RONDE_E_UNSUPPORTED,
                  "a " + type + " has fields that this version (" + ronde_version() +
                      ") does not know: leave them zero, or use a newer libronde_c");
  }
  return defaults;
}

}  // namespace ronde::c
