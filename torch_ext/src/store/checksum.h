// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ronde::store {

/// SipHash-2-4 with a key of zeros (J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input
/// PRF", 2012), by libsodium.
std::uint64_t checksum(std::string_view bytes);

/// 16 hexadecimal digits.
std::string checksum_text(std::uint64_t value);
inline std::string checksum_text(std::string_view bytes) {
  return checksum_text(checksum(bytes));
}

}  // namespace ronde::store
