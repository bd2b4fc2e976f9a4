// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/store/checksum.h"

#include <sodium/crypto_shorthash.h>

#include <array>
#include <bit>
#include <cstring>

namespace ronde::store {

std::uint64_t checksum(std::string_view bytes) {
  static_assert(std::endian::native == std::endian::little && crypto_shorthash_BYTES == 8);
  constexpr std::array<unsigned char, crypto_shorthash_KEYBYTES> kKey{};
  std::uint64_t value = 0;
  crypto_shorthash(reinterpret_cast<unsigned char*>(&value),
                   reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), kKey.data());
  return value;
}

std::string checksum_text(std::uint64_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(16, '0');
  for (std::size_t i = text.size(); i > 0; value >>= 4) text[--i] = kDigits[value & 15];
  return text;
}

}  // namespace ronde::store
