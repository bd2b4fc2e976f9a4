// SPDX-License-Identifier: Apache-2.0
// What strangers send to a rank that waits for its children.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/socket/handshake_server.h"
#include "backends/socket/sockets.h"
#include "tests/sweeps/fuzz/decoders/fuzz_target.h"

namespace ronde::fuzz {
namespace {

constexpr std::string_view kToken = "sixteen bytes of";

std::string hello_of(std::uint32_t rank) {
  net::Hello hello;
  hello.rank = rank;
  std::copy(kToken.begin(), kToken.end(), hello.token.begin());
  return {reinterpret_cast<const char*>(&hello), sizeof hello};
}

/// All of a hello but the reserved bytes at its end.
bool begins_with_hello_of(std::uint32_t rank, std::string_view bytes) {
  constexpr std::size_t kCompared = offsetof(net::Hello, reserved);
  return bytes.size() >= sizeof(net::Hello) &&
         bytes.substr(0, kCompared) == std::string_view(hello_of(rank)).substr(0, kCompared);
}

/// The ranks that a parent of the ranks 1 and 2 admits if somebody says `bytes`.
std::vector<int> admitted(std::string_view bytes) {
  const std::string name = "ronde-fuzz-" + std::to_string(::getpid());
  const net::Endpoint endpoint = {name, 0, {}, std::string(kToken), std::string(16, 'r')};
  std::vector<UniqueFd> listeners;
  listeners.push_back(net::listen_unix(name));
  const net::Address address = net::unix_address(name);
  const UniqueFd socket = net::make_socket(AF_UNIX);
  const auto* const to = reinterpret_cast<const sockaddr*>(&address.storage);
  require(::connect(socket.get(), to, address.length) == 0, "a connection");
  const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  require(sent == static_cast<ssize_t>(bytes.size()), "the bytes fit the socket");
  net::HandshakeServer server(0, {1, 2}, endpoint, std::move(listeners));
  net::Meeting meeting;
  server.run(net::Clock::now(), meeting);
  std::vector<int> ranks;
  for (const net::Peer& peer : meeting.peers) ranks.push_back(peer.rank);
  return ranks;
}

}  // namespace

Corpus corpus() {
  return {{hello_of(1), hello_of(2) + "what follows"}};
}

}  // namespace ronde::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ronde::fuzz;
  const std::string_view bytes = text_of(data, size);
  std::vector<int> expected;
  for (const int rank : {1, 2}) {
    if (begins_with_hello_of(static_cast<std::uint32_t>(rank), bytes)) expected.push_back(rank);
  }
  require(admitted(bytes) == expected, "whoever says the job's token is admitted, and nobody else");
  if (!expected.empty()) ++accepted;
  return 0;
}
