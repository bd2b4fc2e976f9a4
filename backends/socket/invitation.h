// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// What the two sides of a connection say to each other: Note [Bootstrap of the tree].
namespace ronde::net {

inline constexpr std::uint64_t kMagic = 0x31'65'64'6e'6f'52'01'00;
inline constexpr std::size_t kTokenBytes = 16;
inline constexpr std::chrono::seconds kHandshakeTimeout{10};

struct Hello {
  std::uint64_t magic = kMagic;
  std::uint32_t rank = 0;
  std::array<char, kTokenBytes> token = {};
  std::uint32_t reserved = 0;
};
static_assert(sizeof(Hello) == 32);

/// Where a rank can be reached by its children, and how both sides prove who they are.
struct Invitation {
  std::string unix_name;
  std::uint16_t port = 0;
  std::vector<std::string> addresses;
  std::string hello_token;
  std::string reply_token;
};

std::string pack_invitation(const Invitation& invitation);

/// Throws GroupError that names `sender` on what is none.
Invitation unpack_invitation(std::string_view bytes, int sender);

}  // namespace ronde::net
