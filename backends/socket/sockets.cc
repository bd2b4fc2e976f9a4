// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/sockets.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

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
    // Closed connections of an earlier start must not block the port.
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
  // A leading zero makes the name abstract: there is no file, and it ends with the last socket.
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
    throw Error("this rank cannot find out its TCP port: " + errno_text(errno));
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

namespace {

using Interfaces = std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)>;

Interfaces list_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    throw Error("cannot list the addresses of this host: " + errno_text(errno));
  }
  return {first, &::freeifaddrs};
}

/// Returns the text of an interface's address; empty if it has no IPv4 or IPv6 address.
std::string text_of(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr) return "";
  const sa_family_t family = entry.ifa_addr->sa_family;
  if (family == AF_INET) return numeric_text(*entry.ifa_addr, sizeof(sockaddr_in));
  return family == AF_INET6 ? numeric_text(*entry.ifa_addr, sizeof(sockaddr_in6)) : "";
}

}  // namespace

std::string host_identity() {
  const char* const boot_path = "/proc/sys/kernel/random/boot_id";
  std::string boot_id;
  if (std::ifstream file(boot_path); !std::getline(file, boot_id) || boot_id.empty()) {
    throw Error(std::string("cannot identify this host: ") + boot_path +
                " is not readable (is /proc mounted?)");
  }
  struct stat space = {};
  if (::stat("/proc/self/ns/net", &space) != 0) {
    throw Error("cannot identify this host: /proc/self/ns/net: " + errno_text(errno));
  }
  return boot_id + "/net:" + std::to_string(space.st_ino);
}

std::string numeric_text(const sockaddr& address, socklen_t length) {
  constexpr std::string_view kMapped = "::ffff:";  // IPv4 written as IPv6
  char text[NI_MAXHOST] = {};
  const int code = ::getnameinfo(&address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  if (code != 0) return "";
  const std::string_view whole = text;
  const bool is_mapped = whole.starts_with(kMapped) && whole.find('.') != whole.npos;
  return std::string(is_mapped ? whole.substr(kMapped.size()) : whole);
}

bool is_link_local(std::string_view numeric) {
  return numeric.starts_with("fe80:") || numeric.find('%') != numeric.npos;
}

std::vector<std::string> interface_addresses(bool with_loopback) {
  const Interfaces interfaces = list_interfaces();
  std::vector<std::string> addresses;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = interfaces.get(); entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      if ((entry->ifa_flags & IFF_UP) == 0) continue;
      if ((entry->ifa_flags & IFF_LOOPBACK) != 0 && !with_loopback) continue;
      std::string text = text_of(*entry);
      if (!text.empty() && !is_link_local(text)) addresses.push_back(std::move(text));
    }
  }
  return addresses;
}

bool is_own_address(std::string_view numeric) {
  const Interfaces interfaces = list_interfaces();
  const bool has_link = numeric.find('%') != numeric.npos;
  for (const ifaddrs* entry = interfaces.get(); entry != nullptr; entry = entry->ifa_next) {
    const std::string own = text_of(*entry);
    if (own == numeric || (!has_link && own.substr(0, own.find('%')) == numeric)) return true;
  }
  return false;
}

void make_room_for_files(std::size_t more) {
  constexpr std::size_t kOthers = 64;  // the program's own, and those of backends
  struct rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) throw Error("getrlimit: " + errno_text(errno));
  std::error_code error;
  const std::filesystem::directory_iterator entries("/proc/self/fd", error);
  if (error) throw Error("it cannot read /proc/self/fd: " + errno_text(error.value()));
  const auto needed =
      static_cast<rlim_t>(std::distance(begin(entries), end(entries))) + more + kOthers;
  if (needed <= limit.rlim_cur) return;

  limit.rlim_cur = std::min(needed, limit.rlim_max);
  const bool has_room = needed - kOthers <= limit.rlim_cur;
  if (has_room && ::setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  throw Error("it needs " + std::to_string(needed) + " open files at once, " +
              std::to_string(more) + " of them for the ranks that connect to it, and may have " +
              std::to_string(limit.rlim_max) +
              " (ulimit -Hn): raise that limit for the job, or run more ranks on each host");
}

}  // namespace ronde::net
