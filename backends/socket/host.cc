// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/host.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <system_error>

#include "core/src/base/system.h"
#include "ronde/error.h"

namespace ronde::net {
namespace {

/// The text of `address`, or empty for what another host could not connect to.
std::string text_of(const sockaddr& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.sa_family == AF_INET) {
    const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &ipv4.sin_addr, text, sizeof text);
  } else if (address.sa_family == AF_INET6) {
    const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(address);
    if (!IN6_IS_ADDR_LINKLOCAL(&ipv6.sin6_addr)) {
      inet_ntop(AF_INET6, &ipv6.sin6_addr, text, sizeof text);
    }
  }
  return text;
}

}  // namespace

std::string host_identity() {
  const char* const boot_path = "/proc/sys/kernel/random/boot_id";
  std::string boot_id;
  if (std::ifstream file(boot_path); !std::getline(file, boot_id) || boot_id.empty()) {
    throw Error(std::string("cannot tell this host from others: ") + boot_path +
                " is not readable (is /proc mounted?)");
  }
  struct stat space = {};
  if (::stat("/proc/self/ns/net", &space) != 0) {
    throw Error("cannot tell this host from others: /proc/self/ns/net: " + errno_text(errno));
  }
  return boot_id + "/net:" + std::to_string(space.st_ino);
}

std::vector<std::string> interface_addresses(bool with_loopback) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    throw Error("cannot list the addresses of this host: " + errno_text(errno));
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  std::vector<std::string> addresses;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      if ((entry->ifa_flags & IFF_UP) == 0) continue;
      if ((entry->ifa_flags & IFF_LOOPBACK) != 0 && !with_loopback) continue;
      if (std::string text = text_of(*entry->ifa_addr); !text.empty()) {
        addresses.push_back(std::move(text));
      }
    }
  }
  return addresses;
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
