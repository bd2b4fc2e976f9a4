// SPDX-License-Identifier: Apache-2.0
// Each side of the handshake, with the other one played by hand.
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "backends/socket/handshake_client.h"
#include "backends/socket/handshake_server.h"
#include "backends/socket/sockets.h"
#include "tests/socket/trees.h"
#include "tests/support/processes/file_limit.h"
#include "tests/support/processes/reserved_port.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Catch::Contains;

const std::string kJob = "run 'a'";

const net::Credentials& credentials() {
  static const net::Credentials kOfTwo = {kJob, 2, net::JobKey("", "a token")};
  return kOfTwo;
}

/// The server of rank 0 of two, at a local socket.
class Server {
 public:
  UniqueFd connect() const {
    UniqueFd socket = try_connect(0);
    check(static_cast<bool>(socket), "connected");
    return socket;
  }

  /// Empty if `flags` has SOCK_NONBLOCK and too many connections wait to be accepted.
  UniqueFd try_connect(int flags) const {
    const net::Address address = net::unix_address(name_);
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
    const auto* const to = reinterpret_cast<const sockaddr*>(&address.storage);
    return ::connect(socket.get(), to, address.length) == 0 ? std::move(socket) : UniqueFd();
  }

  net::Meeting run(Clock::time_point deadline) {
    net::Meeting meeting;
    server_.run(deadline, meeting);
    return meeting;
  }

 private:
  static std::vector<UniqueFd> listen_at(const std::string& name) {
    std::vector<UniqueFd> listeners;
    listeners.push_back(net::listen_unix(name));
    return listeners;
  }

  const std::string name_ = "ronde-handshake-test-" + std::to_string(::getpid());
  net::HandshakeServer server_{0, {1}, credentials(), listen_at(name_), 0};
};

template <typename Message>
bool read_whole(const UniqueFd& socket, Message& message, int flags = MSG_WAITALL) {
  return ::recv(socket.get(), &message, sizeof message, flags) == sizeof message;
}

template <typename Message>
void write_whole(const UniqueFd& socket, const Message& message) {
  check(::send(socket.get(), &message, sizeof message, MSG_NOSIGNAL) == sizeof message, "sent");
}

/// Sends the Hello of rank 1, once it is greeted.
void introduce(const UniqueFd& socket) {
  net::Greeting greeting;
  if (!read_whole(socket, greeting)) return;
  net::Hello hello;
  hello.rank = 1;
  hello.size = 2;
  hello.patience_ms = 20'000;
  hello.job = net::to_name(kJob);
  hello.proof = net::proof_of_hello(credentials().key, greeting, hello);
  write_whole(socket, hello);
}

/// Whether the other side has greeted and then closed it.
bool has_ended(const UniqueFd& socket) {
  net::Greeting greeting;
  char more = 0;
  return read_whole(socket, greeting, MSG_DONTWAIT) &&
         ::recv(socket.get(), &more, 1, MSG_DONTWAIT) == 0;
}

/// Returns the limit on files with which no more can be opened.
rlim_t open_files(const UniqueFd& any) {
  const UniqueFd next(::dup(any.get()));
  check(static_cast<bool>(next), "another file");
  return static_cast<rlim_t>(next.get());
}

/// Plays rank 0 on the next connection: answers the Hello.
UniqueFd answer_next(int listener, net::Verdict verdict) {
  UniqueFd socket(::accept(listener, nullptr, nullptr));
  if (!socket) return {};
  const net::Greeting greeting;
  write_whole(socket, greeting);
  net::Hello hello;
  if (!read_whole(socket, hello)) return {};
  net::Answer answer;
  answer.verdict = static_cast<std::uint32_t>(verdict);
  answer.proof = net::proof_of_answer(credentials().key, greeting, hello, answer);
  write_whole(socket, answer);
  return socket;
}

}  // namespace

/// Runs the server with a limit on files, which checks must not have: sanitizers open files in
/// them.
net::Meeting run_with_files(Server& server, rlim_t most, std::chrono::milliseconds patience) {
  const ResourceLimit files(RLIMIT_NOFILE, most);
  return server.run(Clock::now() + patience);
}

TEST_CASE("silent connections, that are too many or take all files, make room for a rank") {
  const bool lacks_files = GENERATE(false, true);
  Server server;
  std::vector<UniqueFd> strangers(lacks_files ? 20 : 100);
  std::ranges::generate(strangers, [&] { return server.connect(); });
  const UniqueFd last = server.connect();
  std::jthread rank([&] { introduce(last); });
  const rlim_t most = open_files(last) + (lacks_files ? 3 : 200);
  CHECK(run_with_files(server, most, 20s).missing.empty());
  CHECK(has_ended(strangers.front()));
  if (!lacks_files) CHECK_FALSE(has_ended(strangers.back()));
}

TEST_CASE("a process without files to spare says so of the ranks that it misses") {
  Server server;
  const UniqueFd waiting = server.connect();
  const net::Meeting meeting = run_with_files(server, open_files(waiting), 200ms);
  CHECK(meeting.missing == std::vector<int>{1});
  CHECK_THAT(meeting.missing_text, Contains("cannot open more files: too many open files"));
}

TEST_CASE("a stranger does not become a rank, and is counted for the rank that is missing") {
  Server server;
  const UniqueFd stranger = server.connect();
  net::Hello hello;
  hello.magic = 0;
  write_whole(stranger, hello);
  const net::Meeting meeting = server.run(Clock::now() + 2s);
  CHECK(has_ended(stranger));
  CHECK_THAT(meeting.missing_text,
             Contains("1 rank(s): 1") && Contains("1 connection(s) were refused, the last one "
                                                  "because a stranger connected"));
}

TEST_CASE("strangers that keep coming do not put off the deadline") {
  Server server;
  std::atomic<bool> is_over = false;
  std::jthread strangers([&] {
    while (!is_over) server.try_connect(SOCK_NONBLOCK);  // nobody accepts once it is over
  });
  const net::Meeting meeting = server.run(Clock::now() + 200ms);
  is_over = true;
  CHECK(meeting.missing == std::vector<int>{1});
}

TEST_CASE("a rank tries again where it failed, though another address never answers") {
  const ReservedPort dead, live;
  REQUIRE(::listen(dead.fd(), 0) == 0);
  REQUIRE(::listen(live.fd(), 8) == 0);
  const net::Address nowhere = net::tcp_address("127.0.0.1", dead.number());
  const auto* const to = reinterpret_cast<const sockaddr*>(&nowhere.storage);
  const UniqueFd filler(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(filler.get(), to, nowhere.length) == 0);  // no room for a second one
  std::jthread root([&] {
    UniqueFd(::accept(live.fd(), nullptr, nullptr));  // and closed
    // An earlier process of the rank may have ended unnoticed.
    answer_next(live.fd(), net::Verdict::RankIsTaken);
    answer_next(live.fd(), net::Verdict::Admitted);
  });
  net::HandshakeClient client(1, 0, credentials(),
                              {nowhere, net::tcp_address("127.0.0.1", live.number())});
  CHECK_NOTHROW(client.run(Clock::now() + 20s));
  ::shutdown(live.fd(), SHUT_RDWR);
}
