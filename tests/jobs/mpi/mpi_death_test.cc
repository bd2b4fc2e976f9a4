// SPDX-License-Identifier: Apache-2.0
// Helper processes of tests/jobs/mpi/death.sh, which starts them under mpiexec
// -disable-auto-cleanup: a rank dies, and every survivor writes what it saw into a file of its own.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "backends/mpi/mpi.h"
#include "tests/support/processes/launcher_rank.h"

namespace {

using namespace std::chrono_literals;
using ronde::Incoming;
using ronde::MpiOptions;
using ronde::Segment;
using ronde::Transport;
using Clock = Transport::Clock;
using Kind = Incoming::Kind;

/// Far above what it takes to notice a death.
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
  options.host = "host " + std::to_string(ronde::test::launched_rank());
  options.offer_loopback = true;
  return options;
}

/// Meets rank 1 in a reduction that it will never finish, then waits for word of its death.
void survive(Rank& rank) {
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
  std::string text = finished ? "the reduction finished without the victim: " : "";
  if (seen.kind == Kind::PeerLost) {
    text += "lost " + std::to_string(seen.peer) + ": " + seen.bytes;
  } else if (seen.kind == Kind::Message) {
    text += "told: " + seen.bytes;
  } else {
    text += rank.number() == 0 ? "nothing" : "not told";
  }
  if (rank.number() == 0) {
    for (int peer = 1; peer < rank.transport->topology().size; ++peer) {
      rank.transport->send(peer, "rank " + std::to_string(seen.peer) + " died");
    }
  }
  rank.transport->close(false, Clock::now() + 2s);
  write_verdict(rank.number(), text);
}

/// What a child inherits of mpiexec's would keep mpiexec waiting; it is here for a socket of ours.
void keep_only_sockets(int besides) {
  const char* const launcher = std::getenv("PMI_FD");
  const int launcher_fd = launcher == nullptr ? -1 : std::atoi(launcher);
  for (int fd = 0; fd < 1024; ++fd) {
    struct stat status = {};
    if (fd == besides || ::fstat(fd, &status) != 0) continue;
    if (!S_ISSOCK(status.st_mode) || fd == launcher_fd) ::close(fd);
  }
}

void die() {
  std::raise(SIGKILL);
}

}  // namespace

TEST_CASE("helper: rank 1 is killed", "[.death]") {
  Rank rank;
  if (rank.number() == 1) die();
  survive(rank);
}

TEST_CASE("helper: rank 1 of another host is killed", "[.death]") {
  Rank rank(one_host_each());
  if (rank.number() == 1) die();
  survive(rank);
}

TEST_CASE("helper: rank 1 is killed while its child holds the socket", "[.death]") {
  Rank rank;
  if (rank.number() != 1) return survive(rank);
  // The child inherits the socket, and holds it until death.sh, which makes this pipe, has all
  // verdicts and opens the other end.
  const std::string pipe = verdict_folder() + "/pipe";
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  if (::fork() == 0) {
    keep_only_sockets(ready[1]);
    ::alarm(60);
    const ssize_t written = ::write(ready[1], "x", 1);
    const int fd = ::open(pipe.c_str(), O_RDONLY);
    ::_exit(written == 1 && fd >= 0 ? 0 : 1);
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  die();
}
