// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace ronde::test {

inline sockaddr_un unix_address(const std::filesystem::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.native().size() >= sizeof address.sun_path) throw std::length_error(path);
  path.native().copy(address.sun_path, path.native().size());
  return address;
}

/// Leaves a socket on which nobody listens.
inline void leave_socket(const std::filesystem::path& path) {
  const sockaddr_un address = unix_address(path);
  const int left = socket(AF_UNIX, SOCK_STREAM, 0);
  const int result = bind(left, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  close(left);
  if (result != 0) throw std::runtime_error("no socket at " + path.string());
}

/// All that the listener sends; empty if there is none.
inline std::string read_socket(int connected) {
  std::string text;
  char buffer[4096];
  for (ssize_t count = 0; (count = read(connected, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  return text;
}

}  // namespace ronde::test
