// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "tests/ucx/ucx_ranks.h"

namespace ronde::test {
namespace {

constexpr int kRanks = 2;
constexpr std::size_t kMany = std::size_t{4} << 20;
using Bytes = std::vector<unsigned char>;

/// BackendContext::exchange between two processes that share a pair of sockets.
std::vector<std::string> exchange(int socket, int rank, std::string_view blob) {
  std::vector<std::string> blobs(kRanks);
  blobs[static_cast<std::size_t>(rank)] = blob;
  if (::send(socket, blob.data(), blob.size(), 0) != static_cast<ssize_t>(blob.size())) _exit(3);
  std::string other(64 << 10, '\0');
  const ssize_t got = ::recv(socket, other.data(), other.size(), 0);
  if (got <= 0) _exit(4);
  other.resize(static_cast<std::size_t>(got));
  blobs[static_cast<std::size_t>(1 - rank)] = other;
  return blobs;
}

/// What goes on between the two ranks when one dies.
enum class Traffic { TheDeadSends, TheDeadReceives, Both };

/// Rank 0 posts two messages each way, of which rank 1 knows the first only.
std::unique_ptr<MessageBatch> post(Fabric& fabric, int rank, Traffic traffic) {
  const auto memory = std::make_shared<Bytes>(2 * kMany);
  auto batch = fabric.make_batch(memory);
  for (int message = rank; message < 2; ++message) {
    if (traffic == Traffic::Both || (traffic == Traffic::TheDeadSends) == (rank == 1)) {
      batch->send(1 - rank, {}, memory->data(), kMany);
    }
    if (traffic == Traffic::Both || (traffic == Traffic::TheDeadSends) == (rank == 0)) {
      batch->receive(1 - rank, {}, memory->data() + kMany, kMany);
    }
  }
  return batch;
}

/// Rank 1: exchanges a message with rank 0, begins the traffic, and is killed by itself in the
/// middle of it.
[[noreturn]] void be_killed(int socket, Traffic traffic) {
  constexpr unsigned kPatienceInS = 30;
  alarm(kPatienceInS);
  const auto fabric =
      make_ucx_fabric(1, kRanks, [&](std::string_view blob) { return exchange(socket, 1, blob); });
  const auto warm = fabric->make_batch(nullptr);
  char byte = 0;
  warm->receive(0, {1, 0}, &byte, 1);
  while (!warm->poll()) {
  }
  auto batch = post(*fabric, 1, traffic);
  static_cast<void>(batch->poll());
  kill(getpid(), SIGKILL);
  _exit(5);
}

void check_death(Traffic traffic) {
  int sockets[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0);
  const pid_t child = fork();  // before UCX has begun
  REQUIRE(child >= 0);
  if (child == 0) be_killed(sockets[1], traffic);
  const auto fabric = make_ucx_fabric(
      0, kRanks, [&](std::string_view blob) { return exchange(sockets[0], 0, blob); });
  const auto warm = fabric->make_batch(nullptr);
  const char byte = 1;
  warm->send(1, {1, 0}, &byte, 1);
  std::unique_ptr<MessageBatch> batch = post(*fabric, 0, traffic);
  const Death death = death_of([&] {
    while (!batch->poll()) std::this_thread::yield();
  });
  CHECK(death.rank == 1);
  CHECK_THAT(death.text, Catch::Contains("rank 0 lost its UCX connection to rank 1"));
  CHECK_THROWS_AS(post(*fabric, 0, traffic), GroupError);
  fabric->abort();
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGKILL);
}

TEST_CASE("a killed rank from which ucx receives is named", "[own]") {
  check_death(Traffic::TheDeadSends);
}

TEST_CASE("a killed rank to which ucx sends is named", "[own]") {
  check_death(Traffic::TheDeadReceives);
}

TEST_CASE("a killed rank with which ucx does both is named", "[own]") {
  check_death(Traffic::Both);
}

}  // namespace
}  // namespace ronde::test
