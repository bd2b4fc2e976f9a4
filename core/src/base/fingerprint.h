// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

/// Hashes an array in four chains of words, at the speed of memory. Arrays of one size that differ
/// in one word never have the same hash.
inline std::uint64_t fingerprint_of_words(const std::byte* data, std::size_t size) noexcept {
  const auto mix = [](std::uint64_t hash, std::uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
    return hash ^ (hash >> 32);
  };
  std::array<std::uint64_t, 4> lanes = {1, 2, 3, 4};
  std::array<std::uint64_t, 4> words{};
  const std::size_t rest = size % sizeof(words);
  for (std::size_t at = 0; at < size - rest; at += sizeof(words)) {
    std::memcpy(words.data(), data + at, sizeof(words));
    for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = mix(lanes[i], words[i]);
  }
  words = {};
  if (rest > 0) std::memcpy(words.data(), data + size - rest, rest);
  std::uint64_t hash = size;
  for (std::size_t i = 0; i < lanes.size(); ++i) hash = mix(hash, mix(lanes[i], words[i]));
  return hash;
}

}  // namespace ronde::detail
