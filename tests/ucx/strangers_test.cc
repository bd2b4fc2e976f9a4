// SPDX-License-Identifier: Apache-2.0
// What reaches UCX's sockets from outside of the job: whoever can connect can send.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "backends/ucx/ucx_fabric.h"
#include "core/src/base/system.h"
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

}  // namespace
}  // namespace ronde::test
