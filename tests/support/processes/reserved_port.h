// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <stdexcept>

#include "core/src/base/system.h"

namespace ronde::test {

/// A TCP port of this host that nobody else is given while this lives. As both sides set
/// SO_REUSEADDR, it can be listened at.
class ReservedPort {
 public:
  ReservedPort() : holder_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int one = 1;
    ::setsockopt(holder_.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    const bool bound =
        ::bind(holder_.get(), reinterpret_cast<sockaddr*>(&address), length) == 0 &&
        ::getsockname(holder_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0;
    if (!bound) throw std::runtime_error("no port for the test");
    number_ = ntohs(address.sin_port);
  }

  std::uint16_t number() const { return number_; }
  int fd() const { return holder_.get(); }

 private:
  UniqueFd holder_;
  std::uint16_t number_ = 0;
};

}  // namespace ronde::test
