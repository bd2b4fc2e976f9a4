// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <charconv>
#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace ronde::net {

/// Equal for two processes that can meet at an abstract Unix socket: the kernel's boot id and the
/// network namespace. Not the host's name: containers on two machines often share one, and two
/// namespaces of one machine are two hosts to the network. Throws ronde::Error.
std::string host_identity();

/// The address in numbers, with its link if it holds for that alone: "fe80::1%eth0". IPv4 that is
/// written as IPv6 becomes IPv4. Empty if it is no IP address.
std::string numeric_text(const sockaddr& address, socklen_t length);

/// Whether an address of IPv6 holds for one link alone.
bool is_link_local(std::string_view numeric);

/// Numeric addresses of the interfaces that are up, IPv4 first. Link-local ones of IPv6 are left
/// out: they mean nothing on another host.
std::vector<std::string> interface_addresses(bool with_loopback);

/// Whether an interface of this host has the address, be it up or not. A link-local one without
/// its link may be on any.
bool is_own_address(std::string_view numeric);

/// Raises this process's limit on open files where it leaves no room for `more` of them. Throws
/// ronde::Error that says what is needed if the system does not allow it.
void make_room_for_files(std::size_t more);

/// The decimal number that `text` is, and nothing but.
template <std::integral Number>
std::optional<Number> number_in(std::string_view text) {
  Number number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

}  // namespace ronde::net
