// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <charconv>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/src/base/system.h"
#include "ronde/config.h"

// Stream sockets for the bootstrap, which do not block and are closed on exec; and the addresses
// and limits of this host.
namespace ronde::net {

struct Address {
  sockaddr_storage storage = {};
  socklen_t length = 0;
  std::string text;  ///< for error texts
};

/// Returns the address of an abstract Unix socket. Throws Error if the name is too long.
Address unix_address(const std::string& name);

/// Returns a TCP address. Throws Error if `numeric` is no IPv4 or IPv6 address.
Address tcp_address(const std::string& numeric, std::uint16_t port);

/// Sets TCP options: small messages leave at once, and a vanished host is noticed after 7 to 14 s.
void tune_tcp(int fd);

/// Makes a socket; empty if the system refuses.
UniqueFd make_socket(int family);

UniqueFd listen_unix(const std::string& name);

/// The hosts that can reach a listening socket.
enum class Reach { ThisHost, Everybody };

/// Listens at the first of `ports` that is free, on 127.0.0.1 or on all addresses (of IPv4 only, on
/// a host without IPv6), and sets `port`. Throws Error with the ports that were tried.
UniqueFd listen_tcp(PortRange ports, Reach reach, std::uint16_t& port);

/// Waits for an event; false once the deadline has passed.
bool wait_for_events(std::vector<pollfd>& fds, std::chrono::steady_clock::time_point deadline);

/// Returns the process at the other end of a Unix socket, or 0 if this process cannot see it. The
/// kernel translates the number into our pid namespace.
pid_t process_of(int fd);

/// Returns the kernel's boot id and the network namespace: equal for two processes that can meet at
/// an abstract Unix socket. The host's name would not do: containers on two machines often share
/// one, and two network namespaces of one machine are two hosts to the network. Throws
/// ronde::Error.
std::string host_identity();

/// Returns the numeric address, with the link of a link-local one: "fe80::1%eth0". An IPv4-mapped
/// IPv6 address becomes IPv4. Empty if it is no IP address.
std::string numeric_text(const sockaddr& address, socklen_t length);

/// Whether an IPv6 address is link-local.
bool is_link_local(std::string_view numeric);

/// Returns the numeric addresses of the interfaces that are up, IPv4 first, without link-local
/// ones, which are useless on another host.
std::vector<std::string> interface_addresses(bool with_loopback);

/// Whether an interface of this host has the address, even if it is down. A link-local address
/// without a link matches any interface.
bool is_own_address(std::string_view numeric);

/// Raises this process's limit on open files if it leaves no room for `more` files. Throws
/// ronde::Error with the number that is needed if the system does not allow that.
void make_room_for_files(std::size_t more);

/// Parses `text`, which must be a decimal number and nothing else.
template <std::integral Number>
std::optional<Number> number_in(std::string_view text) {
  Number number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

}  // namespace ronde::net
