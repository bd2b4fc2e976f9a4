// SPDX-License-Identifier: Apache-2.0
// Helper processes of tests/jobs/mpi/two_hosts.sh: two ranks in two network namespaces.
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>

#include "backends/mpi/mpi.h"

namespace {

using namespace std::chrono_literals;
using ronde::Incoming;
using ronde::Transport;
using Clock = Transport::Clock;
using Kind = Incoming::Kind;

std::string variable(const char* name) {
  const char* const text = std::getenv(name);
  REQUIRE(text != nullptr);
  return text;
}

void write_verdict(int rank, const std::string& text) {
  std::ofstream(variable("RONDE_TEST_VERDICTS") + "/rank" + std::to_string(rank)) << text << "\n";
}

/// Both ways, more than a socket's buffers hold. Afterwards each rank knows that the other has it.
std::string exchange(Transport& transport) {
  const int other = 1 - transport.topology().rank;
  for (const std::string& message : {std::string(5'000'000, 'x'), std::string("received")}) {
    transport.send(other, message);
    const Incoming incoming = transport.receive(Clock::now() + 20s);
    if (incoming.kind != Kind::Message || incoming.bytes != message) return "the exchange failed";
  }
  if (transport.topology().hosts() != 2) return "the ranks believe to share a host";
  return "ok";
}

void set_link(const char* state) {
  const std::string command = "ip link set dev " + variable("RONDE_TEST_LINK") + " " + state;
  REQUIRE(std::system(command.c_str()) == 0);
}

}  // namespace

TEST_CASE("helper: two hosts meet", "[.two_hosts]") {
  const auto transport = ronde::mpi_transport_factory({})();
  write_verdict(transport->topology().rank, exchange(*transport));
  transport->close(true, Clock::now() + 20s);
}

// The kernel's keepalive takes 10 to 12 s.
constexpr auto kLimit = 15s;

TEST_CASE("helper: the other host vanishes", "[.two_hosts]") {
  const auto transport = ronde::mpi_transport_factory({})();
  const int rank = transport->topology().rank;
  std::string verdict = exchange(*transport);
  if (rank == 0) set_link("down");
  const auto start = Clock::now();
  const Incoming incoming = transport->receive(start + kLimit);
  // Nothing is in flight: keepalive alone can tell.
  if (incoming.kind != Kind::PeerLost || incoming.bytes.rfind("its connection broke: ", 0) != 0) {
    verdict = "not told of the loss in time: " + incoming.bytes;
  }
  if (rank == 0) set_link("up");
  transport->close(false, Clock::now() + 2s);
  write_verdict(rank, verdict);
}
