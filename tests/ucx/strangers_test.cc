// SPDX-License-Identifier: Apache-2.0
// What reaches UCX's sockets from outside of the job: whoever can connect can send.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <thread>

#include "backends/ucx/ucx_fabric.h"
#include "core/src/base/unique_fd.h"
#include "tests/ucx/ucx_ranks.h"

namespace ronde::test {
namespace {

using Bytes = std::vector<unsigned char>;
constexpr std::size_t kMany = std::size_t{4} << 20;

/// The address that this process listens at with a file; port 0 if it does not.
sockaddr_in listens_at(int file) {
  int listens = 0;
  socklen_t length = sizeof listens;
  sockaddr_in address{};
  if (::getsockopt(file, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens == 0) {
    return address;
  }
  length = sizeof address;
  ::getsockname(file, reinterpret_cast<sockaddr*>(&address), &length);
  if (address.sin_family != AF_INET) return {};
  if (address.sin_addr.s_addr == htonl(INADDR_ANY)) {
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  return address;
}

/// Those of UCX in this process.
std::vector<sockaddr_in> listeners() {
  constexpr int kFiles = 1024;
  std::vector<sockaddr_in> found;
  for (int file = 0; file < kFiles; ++file) {
    if (const sockaddr_in address = listens_at(file); address.sin_port != 0) {
      found.push_back(address);
    }
  }
  return found;
}

UniqueFd connect_to(const sockaddr_in& address) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  check(::connect(socket.get(), to, sizeof address) == 0, "connected");
  return socket;
}

/// UCX may close the connection before it has all.
void say(const UniqueFd& socket, const Bytes& bytes) {
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
    strangers.push_back(connect_to(address));  // and says nothing
    strangers.push_back(connect_to(address));
    say(strangers.back(), {1, 2, 3});
    strangers.push_back(connect_to(address));
    say(strangers.back(), Bytes(1 << 16, 0xff));
    strangers.push_back(connect_to(address));
    ::shutdown(strangers.back().get(), SHUT_WR);
    say(connect_to(address), Bytes(40, 7));  // and is gone
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

/// A process with UCX that knows a rank's address, but not the number of the job.
[[noreturn]] void be_stranger(int socket) {
  constexpr unsigned kPatienceInS = 30;
  alarm(kPatienceInS);
  std::string address(64 << 10, '\0');
  const ssize_t got = ::recv(socket, address.data(), address.size(), 0);
  if (got <= 0) _exit(3);
  address.resize(static_cast<std::size_t>(got));
  const auto api = ucx::load_ucx(vendor::dynamic_symbols()).api;
  const auto worker = std::make_shared<ucx::UcxWorker>(api, 1, 2);
  worker->set_addresses({address, worker->address()});
  ucx::UcxFabric fabric(worker, 7, {});
  const auto memory = std::make_shared<Bytes>(kMany);
  const auto small = fabric.make_batch(memory);
  small->send(0, {}, memory->data(), 1);
  while (!small->poll()) {
  }
  const auto large = fabric.make_batch(memory);
  large->send(0, {}, memory->data(), kMany);
  static_cast<void>(large->poll());
  if (::send(socket, "x", 1, 0) != 1) _exit(4);
  char end = 0;
  if (::recv(socket, &end, 1, 0) != 1) _exit(5);
  kill(getpid(), SIGKILL);
  _exit(6);
}

TEST_CASE("a foreign process that sends to a rank by ucx, and dies, harms no message", "[own]") {
  int sockets[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0);
  const pid_t child = fork();  // before UCX has begun
  REQUIRE(child >= 0);
  if (child == 0) be_stranger(sockets[1]);
  ::close(sockets[1]);

  const auto api = ucx::load_ucx(vendor::dynamic_symbols()).api;
  std::vector<std::shared_ptr<ucx::UcxWorker>> workers;
  for (int rank : {0, 1}) workers.push_back(std::make_shared<ucx::UcxWorker>(api, rank, 2));
  std::vector<std::unique_ptr<Fabric>> fabrics;
  for (const auto& worker : workers) {
    worker->set_addresses({workers[0]->address(), workers[1]->address()});
    fabrics.push_back(std::make_unique<ucx::UcxFabric>(worker, 8, UcxOptions()));
  }
  const std::string address = workers[0]->address();
  REQUIRE(::send(sockets[0], address.data(), address.size(), 0) ==
          static_cast<ssize_t>(address.size()));
  exchange_all(fabrics, kMany);
  char word = 0;
  ssize_t heard = -1;
  while ((heard = ::recv(sockets[0], &word, 1, MSG_DONTWAIT)) < 0) exchange_all(fabrics, 1);
  REQUIRE(heard == 1);  // or it has failed
  exchange_all(fabrics, kMany);
  REQUIRE(::send(sockets[0], "x", 1, 0) == 1);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGKILL);
  for (int i = 0; i < 100; ++i) exchange_all(fabrics, 1);
  exchange_all(fabrics, kMany);
}

}  // namespace
}  // namespace ronde::test
