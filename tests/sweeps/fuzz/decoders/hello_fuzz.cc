// SPDX-License-Identifier: Apache-2.0
// What strangers send to a rank that waits for its children.
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <utility>

#include "backends/socket/handshake_server.h"
#include "backends/socket/sockets.h"
#include "tests/sweeps/fuzz/decoders/fuzz_target.h"

namespace ronde::fuzz {
namespace {

const std::string kJob = "a job";

/// Stands for the proof, which nobody can write down before the parent has spoken.
net::Proof marker() {
  net::Proof proof;
  proof.fill('P');
  return proof;
}

std::string bytes_of(const net::Hello& hello) {
  return {reinterpret_cast<const char*>(&hello), sizeof hello};
}

std::string hello_of(std::uint32_t rank) {
  net::Hello hello;
  hello.rank = rank;
  hello.size = 3;
  hello.patience_ms = 1000;
  hello.job = net::to_name(kJob);
  hello.proof = marker();
  return bytes_of(hello);
}

std::optional<net::Hello> begin_of(std::string_view bytes) {
  net::Hello hello;
  if (bytes.size() < sizeof hello) return std::nullopt;
  std::memcpy(&hello, bytes.data(), sizeof hello);
  return hello;
}

bool is_of_job(const net::Hello& hello) {
  return hello.magic == net::kMagic && hello.size == 3 && hello.has_key == 0 &&
         hello.job == net::to_name(kJob) && hello.proof == marker();
}

/// The ranks that a parent of the ranks 1 and 2 admits if somebody says `bytes`.
std::vector<int> admitted(std::string_view bytes) {
  const std::string name = "ronde-fuzz-" + std::to_string(::getpid());
  const net::JobKey key("", "token");
  std::vector<UniqueFd> listeners;
  listeners.push_back(net::listen_unix(name));
  const net::Address address = net::unix_address(name);
  const UniqueFd socket = net::make_socket(AF_UNIX);
  const auto* const to = reinterpret_cast<const sockaddr*>(&address.storage);
  require(::connect(socket.get(), to, address.length) == 0, "a connection");
  net::HandshakeServer server(0, {1, 2}, {kJob, 3, key}, std::move(listeners), 0);
  net::Meeting meeting;
  server.run(net::Clock::now(), meeting);
  net::Greeting greeting;
  require(::recv(socket.get(), &greeting, sizeof greeting, 0) == sizeof greeting, "a greeting");
  std::string said(bytes);
  if (std::optional<net::Hello> hello = begin_of(bytes); hello && hello->proof == marker()) {
    hello->proof = net::proof_of_hello(key, greeting, *hello);
    said.replace(0, sizeof(net::Hello), bytes_of(*hello));
  }
  const ssize_t sent = ::send(socket.get(), said.data(), said.size(), MSG_NOSIGNAL);
  require(sent == static_cast<ssize_t>(said.size()), "the bytes fit the socket");
  server.run(net::Clock::now(), meeting);
  std::vector<int> ranks;
  for (const net::Peer& peer : meeting.peers) ranks.push_back(peer.rank);
  return ranks;
}

}  // namespace

std::vector<std::string> valid_inputs() {
  return {hello_of(1), hello_of(2) + "what follows"};
}

bool take(std::string_view bytes) {
  std::vector<int> expected;
  const std::optional<net::Hello> hello = begin_of(bytes);
  if (hello && is_of_job(*hello) && (hello->rank == 1 || hello->rank == 2)) {
    expected.push_back(static_cast<int>(hello->rank));
  }
  require(admitted(bytes) == expected,
          "whoever proves to be of the job is admitted, and nobody else");
  return !expected.empty();
}

}  // namespace ronde::fuzz
