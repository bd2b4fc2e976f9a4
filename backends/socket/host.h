// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace ronde::net {

/// Equal for two processes that can meet at an abstract Unix socket: the kernel's boot id and the
/// network namespace. Not the host's name: containers on two machines often share one, and two
/// namespaces of one machine are two hosts to the network. Throws ronde::Error.
std::string host_identity();

/// Numeric addresses of the interfaces that are up, IPv4 first. Link-local ones are left out: they
/// mean nothing on another host.
std::vector<std::string> interface_addresses(bool with_loopback);

/// Bytes from the kernel's random source. Throws ronde::Error.
std::string random_bytes(std::size_t count);

std::string to_hex(std::string_view bytes);

/// "Connection refused" for ECONNREFUSED, "too many open files (ulimit -n is 32)" for EMFILE.
std::string errno_text(int code);

/// Raises this process's limit on open files where it leaves no room for `more` of them. Throws
/// ronde::Error that says what is needed if the system does not allow it.
void make_room_for_files(std::size_t more);

/// Strings as one string and back; unpack throws ronde::Error if `bytes` is not of pack's making.
std::string pack(const std::vector<std::string>& fields);
std::vector<std::string> unpack(std::string_view bytes);

/// Throws GroupError that names `sender`: what it sent while the ranks met is not what this version
/// of Ronde sends.
[[noreturn]] void fail_unreadable(int sender);

/// unpack() of what `sender` sent; fail_unreadable() if that is not so many strings at least.
std::vector<std::string> unpack_from(int sender, std::string_view bytes, std::size_t least_fields);

/// The decimal number that `text` is, and nothing but.
template <std::integral Number>
std::optional<Number> number_in(std::string_view text) {
  Number number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

}  // namespace ronde::net
