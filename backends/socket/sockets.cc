// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "core/src/base/system.h"
#include "ronde/error.h"

namespace ronde::net {
namespace {

using Clock = std::chrono::steady_clock;

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
}

void set_option(int fd, int level, int name, int value) {
  if (::setsockopt(fd, level, name, &value, sizeof value) != 0) {
    throw Error("cannot set option " + std::to_string(name) + " of a socket: " + errno_text(errno));
  }
}

UniqueFd listen_at(const Address& address) {
  UniqueFd listener = make_socket(address.storage.ss_family);
  if (listener && address.storage.ss_family == AF_INET6) {
    set_option(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  }
  if (listener && address.storage.ss_family != AF_UNIX) {
    // Connections of an earlier start that are over do not hold the port.
    set_option(listener.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  }
  if (!listener ||
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) !=
          0 ||
      ::listen(listener.get(), SOMAXCONN) != 0) {
    return UniqueFd();
  }
  return listener;
}

UniqueFd listen_at_port(std::uint16_t port, Reach reach) {
  if (reach == Reach::ThisHost) return listen_at(tcp_address("127.0.0.1", port));
  UniqueFd listener = listen_at(tcp_address("::", port));
  const bool has_no_ipv6 = errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL;
  if (!listener && has_no_ipv6) listener = listen_at(tcp_address("0.0.0.0", port));
  return listener;
}

}  // namespace

bool wait_for_events(std::vector<pollfd>& fds, Clock::time_point deadline) {
  while (true) {
    const int ready =
        ::poll(fds.data(), static_cast<nfds_t>(fds.size()), milliseconds_until(deadline));
    if (ready > 0) return true;
    if (ready == 0 && Clock::now() >= deadline) return false;
    if (ready < 0 && errno != EINTR) throw Error("poll failed: " + errno_text(errno));
  }
}

Address unix_address(const std::string& name) {
  Address address;
  auto& unix_part = reinterpret_cast<sockaddr_un&>(address.storage);
  if (name.size() + 1 > sizeof unix_part.sun_path) {
    throw Error("the name of a local socket has " + std::to_string(name.size()) +
                " bytes, which is too long");
  }
  unix_part.sun_family = AF_UNIX;
  // A leading zero makes it abstract: no file, gone with the last socket.
  std::memcpy(unix_part.sun_path + 1, name.data(), name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  address.text = "local socket " + name;
  return address;
}

Address tcp_address(const std::string& numeric, std::uint16_t port) {
  Address address;
  address.text = numeric + " port " + std::to_string(port);
  auto& ipv4 = reinterpret_cast<sockaddr_in&>(address.storage);
  auto& ipv6 = reinterpret_cast<sockaddr_in6&>(address.storage);
  if (inet_pton(AF_INET, numeric.c_str(), &ipv4.sin_addr) == 1) {
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(port);
    address.length = sizeof ipv4;
  } else if (inet_pton(AF_INET6, numeric.c_str(), &ipv6.sin6_addr) == 1) {
    ipv6.sin6_family = AF_INET6;
    ipv6.sin6_port = htons(port);
    address.length = sizeof ipv6;
  } else {
    throw Error("a rank offered '" + numeric + "', which is no numeric address");
  }
  return address;
}

void tune_tcp(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 3);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 7'000);
}

UniqueFd make_socket(int family) {
  return UniqueFd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

UniqueFd listen_unix(const std::string& name) {
  UniqueFd listener = listen_at(unix_address(name));
  if (!listener) throw Error("this rank cannot listen at a local socket: " + errno_text(errno));
  return listener;
}

UniqueFd listen_tcp(PortRange ports, Reach reach, std::uint16_t& port) {
  UniqueFd listener;
  for (int wanted = ports.first; !listener && wanted <= ports.last; ++wanted) {
    listener = listen_at_port(static_cast<std::uint16_t>(wanted), reach);
  }
  if (!listener) {
    std::string tried = "any TCP port";
    if (ports.first != 0) tried = "TCP port " + std::to_string(ports.first);
    if (ports.first != ports.last) tried += " to " + std::to_string(ports.last);
    throw Error("this rank cannot listen at " + tried + ": " + errno_text(errno));
  }
  sockaddr_storage bound = {};
  socklen_t length = sizeof bound;
  if (::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    throw Error("this rank cannot tell its TCP port: " + errno_text(errno));
  }
  port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  return listener;
}

pid_t process_of(int fd) {
  ucred credentials = {};
  socklen_t length = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return 0;
  return credentials.pid > 0 && credentials.pid != ::getpid() ? credentials.pid : 0;
}

}  // namespace ronde::net
