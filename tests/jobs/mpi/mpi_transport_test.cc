// SPDX-License-Identifier: Apache-2.0
// The MPI transport by itself, under mpiexec. MPI starts once a process: each case has its own.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "backends/mpi/mpi.h"
#include "backends/mpi/mpi_environment.h"
#include "tests/support/processes/launcher_rank.h"

namespace {

using namespace std::chrono_literals;
using ronde::Incoming;
using ronde::MpiOptions;
using ronde::Transport;
using Clock = Transport::Clock;

/// Two ranks a "host": 0 and 2, 1 and 3.
MpiOptions two_hosts() {
  MpiOptions options;
  options.host = "host " + std::to_string(ronde::test::launched_rank() % 2);
  options.offer_loopback = true;
  return options;
}

bool is_mpi_finalized() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized == 1;
}

Incoming next(Transport& transport) {
  Incoming incoming = transport.receive(Clock::now() + 20s);
  if (incoming.kind == Incoming::Kind::Nothing) throw std::runtime_error("nothing came in 20 s");
  return incoming;
}

/// Up the tree every rank sends once it has heard of all its children, then down from rank 0: so
/// nobody is ahead of it.
void check_exchange(Transport& transport, std::size_t bytes) {
  const ronde::Topology& topology = transport.topology();
  std::vector<int> missing = topology.children();
  while (!missing.empty()) {
    const Incoming incoming = next(transport);
    CHECK((incoming.bytes == std::string(bytes, static_cast<char>('a' + incoming.peer))));
    CHECK(std::erase(missing, incoming.peer) == 1);
  }
  if (topology.rank != 0) {
    transport.send(topology.parent(), std::string(bytes, static_cast<char>('a' + topology.rank)));
    const Incoming answer = next(transport);
    CHECK(answer.kind == Incoming::Kind::Message);
    CHECK(answer.bytes == std::to_string(bytes));
  }
  for (const int child : topology.children()) transport.send(child, std::to_string(bytes));
}

}  // namespace

TEST_CASE("ranks of several hosts meet over TCP", "[own]") {
  const auto transport = ronde::mpi_transport_factory(two_hosts())();
  const ronde::Topology& topology = transport->topology();
  CHECK(topology.hosts() == std::min(topology.size, 2));
  CHECK(topology.local_rank == topology.rank / 2);
  CHECK(topology.cross_rank == topology.rank % 2);
  for (const std::size_t bytes : {1, 4096, 3'000'000}) check_exchange(*transport, bytes);
  transport->close(true, Clock::now() + 20s);
}

TEST_CASE("ranks that sent to one other alone finalize MPI, though one comes late", "[own]") {
  setenv("UCX_TLS", "tcp,self", 1);
  const auto transport = ronde::mpi_transport_factory(two_hosts())();
  const ronde::Topology& topology = transport->topology();
  int token = topology.rank, got = -1;
  const int next_rank = (token + 1) % topology.size,
            last = (token + topology.size - 1) % topology.size;
  MPI_Sendrecv(&token, 1, MPI_INT, next_rank, 0, &got, 1, MPI_INT, last, 0, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  CHECK(got == last);
  // The others could be done before it begins.
  if (topology.rank + 1 == topology.size) std::this_thread::sleep_for(300ms);
  transport->close(true, Clock::now() + 20s);
  CHECK(is_mpi_finalized());
}

TEST_CASE("after a failed init the ranks of one host can meet again, exchange and part", "[own]") {
  { const auto first = ronde::mpi_transport_factory({})(); }
  const auto second = ronde::mpi_transport_factory({})();
  const ronde::Topology& topology = second->topology();
  CHECK(topology.rank == ronde::test::launched_rank());
  CHECK(topology.local_rank == topology.rank);
  CHECK(topology.local_size == topology.size);
  for (const std::size_t bytes : {1, 4096, 3'000'000}) check_exchange(*second, bytes);
  second->close(true, Clock::now() + 20s);
  CHECK(is_mpi_finalized());
}
