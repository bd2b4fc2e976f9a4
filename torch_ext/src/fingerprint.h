// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace ronde::detail {

/// FNV-1a, 64 bits: http://www.isthe.com/chongo/tech/comp/fnv/
inline std::uint64_t fingerprint(std::string_view text) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace ronde::detail
