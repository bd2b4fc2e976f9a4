// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace ronde {

/// Owns a file descriptor; -1 is none.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

  void reset() noexcept {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

/// Returns bytes from the kernel's random source. Throws ronde::Error.
std::string random_bytes(std::size_t count);

std::string to_hex(std::string_view bytes);

/// "Connection refused" for ECONNREFUSED, "too many open files (ulimit -n is 32)" for EMFILE.
std::string errno_text(int code);

/// Returns the most memory that was ever resident in this process: VmHWM. 0: it is not known.
std::uint64_t peak_resident_bytes();

/// The name of this host, as gethostname() gives it.
std::string host_name();

}  // namespace ronde
