// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ronde::net {

inline constexpr std::size_t kTokenBytes = 16;

/// Addresses at which a rank's children reach it, and what they prove that they belong to the job
/// with: Note [Bootstrap of the tree].
struct Endpoint {
  std::string unix_name;
  std::uint16_t port = 0;
  std::vector<std::string> addresses;
  std::string name;   ///< of this start, random: anybody may know it
  std::string token;  ///< random, secret
};

std::string pack_endpoint(const Endpoint& endpoint);

/// Throws GroupError that names `sender` if `bytes` are no endpoint.
Endpoint unpack_endpoint(std::string_view bytes, int sender);

}  // namespace ronde::net
