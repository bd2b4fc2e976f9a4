// SPDX-License-Identifier: Apache-2.0
// Helper processes of tests/mpi/death.sh, which starts them under mpiexec -disable-auto-cleanup: a
// rank dies, and every survivor writes what it saw into a file of its own.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "backends/mpi/mpi.h"

namespace {

using namespace std::chrono_literals;
using ronde::Incoming;
using ronde::MpiOptions;
using ronde::Segment;
using ronde::Transport;
using Clock = Transport::Clock;
using Kind = Incoming::Kind;

/// Two transports' worth of time to notice a death, far above what it takes.
constexpr auto kPatience = 10s;

std::string verdict_folder() {
  const char* const folder = std::getenv("RONDE_TEST_VERDICTS");
  REQUIRE(folder != nullptr);
  return folder;
}

/// Written at once under its final name, so that death.sh never reads half a verdict.
void write_verdict(int rank, const std::string& text) {
  const std::string path = verdict_folder() + "/rank" + std::to_string(rank);
  std::ofstream(path + ".part") << text << "\n";
  REQUIRE(std::rename((path + ".part").c_str(), path.c_str()) == 0);
}

struct Rank {
  explicit Rank(const MpiOptions& options = {})
      : transport(ronde::mpi_transport_factory(options)()) {
    ronde::BackendContext context;
    context.topology = &transport->topology();
    backend = ronde::mpi_backend_factory(options).create(context);
  }

  int number() const { return transport->topology().rank; }

  std::unique_ptr<Transport> transport;
  std::unique_ptr<ronde::Backend> backend;
};

MpiOptions one_host_each() {
  MpiOptions options;
  options.host = std::string("host ") + std::getenv("PMI_RANK");
  options.offer_loopback = true;
  return options;
}

/// Hydra's proxy may break down when survivors leave one by one, and takes the others with it: so
/// nobody leaves before all have written.
void wait_for_verdicts(const Rank& rank, int victim) {
  const auto give_up = Clock::now() + kPatience;
  for (int other = 0; other < rank.transport->topology().size; ++other) {
    const std::string path = verdict_folder() + "/rank" + std::to_string(other);
    while (other != victim && ::access(path.c_str(), F_OK) != 0 && Clock::now() < give_up) {
      std::this_thread::sleep_for(1ms);
    }
  }
}

/// Meets the victim in a reduction that it will never finish, then waits for word of its death.
void survive(Rank& rank, int victim) {
  std::vector<float> data(1 << 20, 1.0F);
  const Segment segment{data.data(), data.data(), data.size()};
  const auto operation = rank.backend->allreduce({.segments = {&segment, 1}});
  const auto start = Clock::now();
  Incoming seen;
  bool finished = false;
  while (seen.kind == Kind::Nothing && Clock::now() < start + kPatience) {
    finished = finished || operation->poll();
    seen = rank.transport->receive(Clock::now() + 1ms);
  }
  rank.backend->abort();
  const bool hears = rank.number() == 0 || victim == 0;
  std::string text = finished ? "the reduction finished without the victim: " : "";
  if (seen.kind == Kind::PeerLost) {
    text += "lost " + std::to_string(seen.peer) + ": " + seen.bytes;
  } else if (seen.kind == Kind::Message) {
    text += "told: " + seen.bytes;
  } else {
    text += hears ? "nothing" : "not told";
  }
  if (rank.number() == 0) {
    for (int peer = 1; peer < rank.transport->topology().size; ++peer) {
      rank.transport->send(peer, "rank " + std::to_string(seen.peer) + " died");
    }
  }
  rank.transport->close(false, Clock::now() + 2s);
  write_verdict(rank.number(), text);
  wait_for_verdicts(rank, victim);
}

/// Says that it is ready, then dies on the spot.
void die() {
  std::raise(SIGKILL);
}

}  // namespace

TEST_CASE("helper: rank 1 is killed", "[.death]") {
  Rank rank;
  if (rank.number() == 1) die();
  survive(rank, 1);
}

TEST_CASE("helper: rank 0 is killed", "[.death]") {
  Rank rank;
  if (rank.number() == 0) die();
  survive(rank, 0);
}

TEST_CASE("helper: rank 1 of another host is killed", "[.death]") {
  Rank rank(one_host_each());
  if (rank.number() == 1) die();
  survive(rank, 1);
}

TEST_CASE("helper: rank 1 is killed while its child holds the socket", "[.death]") {
  Rank rank;
  if (rank.number() != 1) return survive(rank, 1);
  // The child inherits the socket, and holds it until death.sh, which makes this pipe, has all
  // verdicts and opens the other end.
  const std::string pipe = verdict_folder() + "/pipe";
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  if (::fork() == 0) {
    // What it was lent by mpiexec must not keep mpiexec waiting.
    const char* const launcher = std::getenv("PMI_FD");
    for (const int fd : {0, 1, 2, launcher == nullptr ? -1 : std::atoi(launcher)}) ::close(fd);
    ::alarm(60);
    const ssize_t written = ::write(ready[1], "x", 1);
    const int fd = ::open(pipe.c_str(), O_RDONLY);
    ::_exit(written == 1 && fd >= 0 ? 0 : 1);
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  die();
}

TEST_CASE("helper: rank 1 leaves without a word", "[.death]") {
  Rank rank;
  if (rank.number() != 1) return survive(rank, 1);
  ::_exit(3);
}
