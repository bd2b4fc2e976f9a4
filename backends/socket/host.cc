// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/host.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
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

using Interfaces = std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)>;

Interfaces list_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    throw Error("cannot list the addresses of this host: " + errno_text(errno));
  }
  return {first, &::freeifaddrs};
}

/// The text of an interface's address; empty where it has none of IPv4 or IPv6.
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
    throw Error(std::string("cannot tell this host from others: ") + boot_path +
                " is not readable (is /proc mounted?)");
  }
  struct stat space = {};
  if (::stat("/proc/self/ns/net", &space) != 0) {
    throw Error("cannot tell this host from others: /proc/self/ns/net: " + errno_text(errno));
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
