// SPDX-License-Identifier: Apache-2.0
// Run by tests/jobs/mpi/two_hosts.sh as two ranks in two network namespaces.
#include <catch2/catch.hpp>
#include <chrono>
#include <string>

#include "backends/mpi/mpi.h"

using namespace std::chrono_literals;

TEST_CASE("helper: two hosts meet", "[.two_hosts]") {
  using Clock = ronde::Transport::Clock;
  const auto transport = ronde::mpi_transport_factory({})();
  REQUIRE(transport->topology().hosts() == 2);
  // More than a socket's buffers hold. Afterwards each rank knows that the other has it.
  for (const std::string& message : {std::string(5'000'000, 'x'), std::string("received")}) {
    transport->send(1 - transport->topology().rank, message);
    const ronde::Incoming incoming = transport->receive(Clock::now() + 20s);
    REQUIRE(incoming.kind == ronde::Incoming::Kind::Message);
    REQUIRE((incoming.bytes == message));
  }
  transport->close(true, Clock::now() + 20s);
}
