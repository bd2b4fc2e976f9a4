// SPDX-License-Identifier: Apache-2.0
// Ranks that are killed, and strangers: any process that can connect to UCX's sockets can send to
// them.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "backends/ucx/ucx_fabric.h"
#include "core/src/base/system.h"
#include "tests/support/harness/case_table.h"
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

/// The messages between the two ranks when rank 1 dies.
enum class Traffic { TheDeadSends, TheDeadReceives, Both };

/// Rank 0 posts two messages each way, rank 1 only the first.
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

/// Runs rank 1: receives a message from rank 0, begins the traffic, and kills itself meanwhile.
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

[[maybe_unused]] const bool kRegistered = [] {
  for (const auto& [what, traffic] : {std::pair("from which ucx receives", Traffic::TheDeadSends),
                                      std::pair("to which ucx sends", Traffic::TheDeadReceives),
                                      std::pair("with which ucx does both", Traffic::Both)}) {
    add_case(std::string("a killed rank ") + what + " is named", "[own]",
             [traffic = traffic] { check_death(traffic); });
  }
  return true;
}();

/// Returns the addresses at which UCX listens in this process.
std::vector<sockaddr_in> listeners() {
  constexpr int kFiles = 1024;
  std::vector<sockaddr_in> found;
  for (int file = 0; file < kFiles; ++file) {
    int listens = 0;
    socklen_t length = sizeof listens;
    ::getsockopt(file, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length);
    if (listens == 0) continue;
    sockaddr_in address{};
    length = sizeof address;
    ::getsockname(file, reinterpret_cast<sockaddr*>(&address), &length);
    if (address.sin_family != AF_INET || address.sin_port == 0) continue;
    if (address.sin_addr.s_addr == INADDR_ANY) address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    found.push_back(address);
  }
  return found;
}

UniqueFd connect_to(const sockaddr_in& address) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  check(::connect(socket.get(), to, sizeof address) == 0, "connected");
  return socket;
}

/// Sends to UCX, which may close the connection before it has all.
void send_bytes(const UniqueFd& socket, const Bytes& bytes) {
  const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  check(sent > 0 || errno == EPIPE || errno == ECONNRESET, "sent, or refused");
}

/// Every rank sends to the next one and receives from the one before.
void exchange_all(const std::vector<std::unique_ptr<Fabric>>& fabrics, std::size_t bytes) {
  const int size = static_cast<int>(fabrics.size());
  std::atomic<int> still_at_work = size;
  run_ranks(size, [&](int rank) {
    const auto memory = std::make_shared<Bytes>(2 * bytes, static_cast<unsigned char>(rank));
    const auto batch = fabrics[static_cast<std::size_t>(rank)]->make_batch(memory);
    batch->send((rank + 1) % size, {}, memory->data(), bytes);
    const int before = (rank + size - 1) % size;
    batch->receive(before, {}, memory->data() + bytes, bytes);
    while (!batch->poll()) std::this_thread::yield();
    check_equal(int{memory->back()}, before, "what came");
    for (--still_at_work; still_at_work > 0;) fabrics[static_cast<std::size_t>(rank)]->progress();
  });
}

TEST_CASE("connections to ucx that say nothing, half of it or nonsense harm no message", "[own]") {
  const auto fabrics = make_ucx_fabrics(2);
  const std::vector<sockaddr_in> addresses = listeners();
  REQUIRE_FALSE(addresses.empty());
  std::vector<UniqueFd> strangers;
  for (const sockaddr_in& address : addresses) {
    strangers.push_back(connect_to(address));  // and sends nothing
    strangers.push_back(connect_to(address));
    send_bytes(strangers.back(), {1, 2, 3});
    strangers.push_back(connect_to(address));
    send_bytes(strangers.back(), Bytes(1 << 16, 0xff));
    strangers.push_back(connect_to(address));
    ::shutdown(strangers.back().get(), SHUT_WR);
    send_bytes(connect_to(address), Bytes(40, 7));  // and is gone
    const linger reset = {1, 0};
    const UniqueFd broken = connect_to(address);
    ::setsockopt(broken.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  }
  exchange_all(fabrics, 1);
  exchange_all(fabrics, kMany);
  strangers.clear();
  exchange_all(fabrics, kMany);
  run_ranks(2, [&](int rank) { fabrics[static_cast<std::size_t>(rank)]->close(); });
}

}  // namespace
}  // namespace ronde::test
