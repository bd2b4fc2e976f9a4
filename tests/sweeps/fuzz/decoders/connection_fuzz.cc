// SPDX-License-Identifier: Apache-2.0
// The stream of a connection, which is cut into messages.
#include "backends/socket/connection.h"

#include <sys/socket.h>

#include <cstring>
#include <utility>

#include "tests/sweeps/fuzz/decoders/fuzz_target.h"

namespace ronde::fuzz {
namespace {

using net::Connection;

constexpr std::size_t kMostBytes = std::size_t{32} << 10;

/// Both fit everything that a target is given.
std::pair<UniqueFd, UniqueFd> connected_sockets() {
  int fds[2] = {-1, -1};
  const int result = ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds);
  require(result == 0, "a pair of sockets");
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

struct Received {
  std::deque<std::string> messages;
  std::string end_text;
};

Received read_all(UniqueFd socket) {
  Received received;
  Connection connection(std::move(socket));
  while (connection.read(received.messages) == Connection::ReadState::Data) {
  }
  received.end_text = connection.end_text();
  return received;
}

/// What a Connection makes of a stream that ends behind `bytes`.
Received read_stream(std::string_view bytes) {
  auto [from, to] = connected_sockets();
  const ssize_t sent = ::send(from.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  require(sent == static_cast<ssize_t>(bytes.size()), "the bytes fit the socket");
  from.reset();
  return read_all(std::move(to));
}

/// The bytes that a Connection sends for these messages.
std::string stream_of(const std::deque<std::string>& messages) {
  auto [from, to] = connected_sockets();
  Connection connection(std::move(from));
  for (const std::string& message : messages) connection.queue(message);
  std::string bytes;
  do {
    connection.flush();
    std::string piece(kMostBytes, '\0');
    const ssize_t got = ::recv(to.get(), piece.data(), piece.size(), 0);
    bytes.append(piece, 0, got > 0 ? static_cast<std::size_t>(got) : 0);
  } while (connection.has_unsent());
  return bytes;
}

struct Cut {
  std::deque<std::string> messages;
  bool holds_nonsense = false;
  std::size_t bytes = 0;  ///< of whole messages
};

/// The same as Connection does, in the simplest way.
Cut cut(std::string_view bytes) {
  Cut result;
  std::uint32_t length = 0;
  while (bytes.size() >= sizeof length) {
    std::memcpy(&length, bytes.data(), sizeof length);
    result.holds_nonsense = length > Connection::kMaxMessage;
    if (bytes.size() - sizeof length < length) break;
    result.messages.emplace_back(bytes.substr(sizeof length, length));
    result.bytes += sizeof length + length;
    bytes.remove_prefix(sizeof length + length);
  }
  return result;
}

}  // namespace

std::vector<std::string> valid_inputs() {
  return {stream_of({"one", "", std::string(100, 'x')}), stream_of({std::string(500, 'y'), "z"})};
}

bool take(std::string_view bytes) {
  const Cut expected = cut(bytes);
  const Received received = read_stream(bytes);
  require(received.messages == expected.messages, "the messages before the stream's end arrive");
  const bool refused = received.end_text.find("no message") != std::string::npos;
  require(refused == expected.holds_nonsense, "a length beyond the limit is refused, and no other");
  require(stream_of(received.messages) == bytes.substr(0, expected.bytes), "what arrived, sent on");
  return expected.bytes == bytes.size();
}

}  // namespace ronde::fuzz
