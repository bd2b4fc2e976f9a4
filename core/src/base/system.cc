// SPDX-License-Identifier: Apache-2.0
#include "core/src/base/system.h"

#include <sys/random.h>
#include <sys/resource.h>

#include <cerrno>
#include <fstream>
#include <system_error>

#include "ronde/error.h"

namespace ronde {

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  std::size_t filled = 0;
  while (filled < count) {
    const ssize_t got = ::getrandom(bytes.data() + filled, count - filled, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error("no random bytes from the kernel: " + errno_text(errno));
    filled += static_cast<std::size_t>(got);
  }
  return bytes;
}

std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string errno_text(int code) {
  struct rlimit limit = {};
  if (code == EMFILE && ::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    return "too many open files (ulimit -n is " + std::to_string(limit.rlim_cur) + ")";
  }
  return std::generic_category().message(code);
}

// getrusage() has the peak of the program that was replaced by exec(), too.
std::uint64_t peak_resident_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    std::uint64_t kilobytes = 0;
    if (word == "VmHWM:" && file >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace ronde
