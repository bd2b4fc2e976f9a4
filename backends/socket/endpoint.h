// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// Messages of the handshake between a rank and its parent: Note [Bootstrap of the tree].
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

/// Addresses at which a rank's children reach it, and the tokens by which both sides prove that
/// they belong to the job.
struct Endpoint {
  std::string unix_name;
  std::uint16_t port = 0;
  std::vector<std::string> addresses;
  std::string hello_token;
  std::string reply_token;
};

std::string pack_endpoint(const Endpoint& endpoint);

/// Throws GroupError that names `sender` if `bytes` are no endpoint.
Endpoint unpack_endpoint(std::string_view bytes, int sender);

}  // namespace ronde::net
