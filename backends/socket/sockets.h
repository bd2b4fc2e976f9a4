// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "core/src/base/system.h"
#include "ronde/config.h"

// Stream sockets as the bootstrap needs them: none blocks, and each is closed on exec.
namespace ronde::net {

struct Address {
  sockaddr_storage storage = {};
  socklen_t length = 0;
  std::string text;  ///< for messages
};

/// An abstract name on this host. Throws Error if it is too long.
Address unix_address(const std::string& name);

/// Throws Error if `numeric` is no IPv4 or IPv6 address.
Address tcp_address(const std::string& numeric, std::uint16_t port);

/// Small messages leave at once, and a host that vanished is noticed after 7 to 14 s.
void tune_tcp(int fd);

/// Empty if the system gives none.
UniqueFd make_socket(int family);

UniqueFd listen_unix(const std::string& name);

/// Who can reach a listening socket.
enum class Reach { ThisHost, Everybody };

/// Listens at the first of `ports` that is free, on 127.0.0.1 or on all addresses; a host without
/// IPv6 takes IPv4 alone. Throws Error that says which ports were tried.
UniqueFd listen_tcp(PortRange ports, Reach reach, std::uint16_t& port);

/// Waits for an event; false once the deadline has passed.
bool wait_for_events(std::vector<pollfd>& fds, std::chrono::steady_clock::time_point deadline);

/// The other side's process if it is one of this host that this process can see. The kernel
/// translates the number into our pid namespace.
pid_t process_of(int fd);

}  // namespace ronde::net
