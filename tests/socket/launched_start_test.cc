// SPDX-License-Identifier: Apache-2.0
// Starts by a launcher's variables: ranks are threads, and there are strangers and mistakes.
#include "backends/socket/launched/launched_start.h"

#include <sched.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <deque>

#include "backends/socket/handshake_client.h"
#include "backends/socket/sockets.h"
#include "tests/socket/trees.h"
#include "tests/support/processes/reserved_port.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Catch::Contains;
using Catch::StartsWith;

const std::string kKey = "correct horse battery";

LaunchedOptions options_at(const ReservedPort& port, int rank, int size) {
  LaunchedOptions options;
  options.launch.rank = rank;
  options.launch.size = size;
  options.launch.job = "run 'a'";
  options.launch.root_host = "127.0.0.1";
  options.launch.host_source = "MASTER_ADDR";
  options.launch.port = port.number();
  options.launch.port_source = "MASTER_PORT + 1";
  options.init_timeout_s = 20;
  options.offer_loopback = true;
  return options;
}

std::unique_ptr<Transport> make(const LaunchedOptions& options) {
  return launched_transport_factory(options)();
}

Topology meet(const LaunchedOptions& options, std::latch& done) {
  return meet_and_close(make(options), done);
}

/// Returns the connection of a stranger, once rank 0 listens.
UniqueFd connect_as_stranger(const ReservedPort& port) {
  const net::Address address = net::tcp_address("127.0.0.1", port.number());
  while (true) {  // the watchdog ends it
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto* const to = reinterpret_cast<const sockaddr*>(&address.storage);
    if (::connect(socket.get(), to, address.length) == 0) return socket;
    std::this_thread::yield();
  }
}

void send_bytes(const UniqueFd& socket, const std::string& bytes) {
  const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  check(sent == static_cast<ssize_t>(bytes.size()), "it was sent");
}

/// Returns the connection of a rank of three that rank 0 has admitted.
UniqueFd connect_as(int rank, const ReservedPort& port) {
  const net::Credentials credentials = {"run 'a'", 3, net::JobKey("", "")};
  net::HandshakeClient client(rank, 0, credentials, {net::tcp_address("127.0.0.1", port.number())});
  return client.run(Clock::now() + 20s);
}

}  // namespace

TEST_CASE("ranks meet at the port of their launch again and again, with a key and without one") {
  const ReservedPort port;
  for (const int hosts : {1, 2}) {
    for (const std::string& key : {std::string(), kKey}) {
      for (int size = 2; size <= 4; ++size) {
        INFO(size << " ranks on " << hosts << " hosts, key '" << key << "'");
        std::latch done(size);
        std::atomic<int> warnings = 0;
        run_ranks(size, [&](int rank) {
          LaunchedOptions options = options_at(port, rank, size);
          options.launch.local_rank = rank / hosts;
          options.job_key = key;
          options.one_host = hosts == 1;
          options.warn = [&, rank](const std::string& text) {
            check(rank == 0, "rank 0 warns");
            check_contains(text, "set RONDE_JOB_KEY");
            ++warnings;
          };
          if (hosts > 1) options.host = "host " + std::to_string(rank % hosts);
          const Topology topology = meet(options, done);
          check(topology.rank == rank && topology.size == size, "rank and size");
          check(topology.hosts() == hosts, "hosts");
        });
        CHECK(warnings == (key.empty() ? 1 : 0));
      }
    }
  }
}

TEST_CASE("ranks of one host need no name, and one rank alone no port") {
  const ReservedPort port;
  std::latch done(2);
  run_ranks(2, [&](int rank) {
    LaunchedOptions options = options_at(port, rank, 2);
    options.launch.one_host = true;
    options.launch.root_host = "no such host";
    options.warn = [](const std::string& text) { check(false, text); };
    meet(options, done);
  });
  REQUIRE(::listen(port.fd(), 1) == 0);  // no other socket can listen there
  LaunchedOptions alone = options_at(port, 0, 1);
  alone.warn = [](const std::string& text) { check(false, text); };
  CHECK(make(alone)->topology().size == 1);
}

TEST_CASE("a port that is taken is named, with where it comes from and what to set") {
  const ReservedPort taken;
  REQUIRE(::listen(taken.fd(), 1) == 0);
  const std::string number = std::to_string(taken.number());
  std::uint16_t port = 0;
  const auto listen = [&](std::uint16_t first, std::uint16_t last) {
    return text_of<Error>([&] { net::listen_tcp({first, last}, net::Reach::ThisHost, port); });
  };
  CHECK(listen(taken.number(), taken.number()) ==
        "this rank cannot listen at TCP port " + number + ": Address already in use");
  CHECK_THAT(
      text_of<GroupError>([&] { make(options_at(taken, 0, 2)); }),
      StartsWith("rank 0 cannot await the others at port " + number + " (MASTER_PORT + 1): ") &&
          Contains("Address already in use") && Contains("a free one by RONDE_PORT"));
  const ReservedPort free;
  CHECK(net::listen_tcp({free.number(), free.number()}, net::Reach::Everybody, port));
  CHECK(port == free.number());
}

TEST_CASE("a rank that does not belong to the job learns why, and the job starts without it") {
  using Change = std::function<void(LaunchedOptions&)>;
  const std::vector<std::tuple<std::string, Change, std::string>> rows = {
      {kKey, [](auto& options) { options.job_key = "wrong horse battery"; },
       "the RONDE_JOB_KEY of rank 1 is not that of rank 0 at 127.0.0.1 port "},
      {kKey, [](auto& options) { options.job_key = ""; },
       "rank 1 has no RONDE_JOB_KEY, but rank 0 at 127.0.0.1 port "},
      {"", [](auto& options) { options.job_key = kKey; },
       "rank 1 has a RONDE_JOB_KEY, but rank 0 at 127.0.0.1 port "},
      {"", [](auto& options) { options.launch.size = 3; },
       "rank 1 was started as one of 3 ranks, rank 0 at 127.0.0.1 port "},
      {kKey,
       [](auto& options) {
         options.launch.rank = 5;
         options.launch.size = 8;
       },
       "rank 5 was started as one of 8 ranks, rank 0 at 127.0.0.1 port "},
      {"",
       [](auto& options) {
         options.launch.rank = 7;
         options.launch.size = 8;
         options.launch.job = "run 'b'";
         options.init_timeout_s = 5;
       },
       "rank 7 could not connect to rank 0 within 5 s: 127.0.0.1 port "}};
  for (const auto& [key, change, text] : rows) {
    INFO(text);
    const ReservedPort port;
    std::latch done(2);
    run_ranks(2, [&, key = key, change = change, text = text](int rank) {
      LaunchedOptions options = options_at(port, rank, 2);
      options.job_key = key;
      if (rank == 1) {
        LaunchedOptions wrong = options;
        change(wrong);
        connect_as_stranger(port);  // so that rank 0 listens
        const std::string got = text_of<GroupError>([&] { make(wrong); });
        check(got.starts_with(text), got);
        check(wrong.launch.job == options.launch.job ||
                  got.find("of run 'a': give each job a RONDE_PORT of its own") != got.npos,
              got);
        check(got.find("horse") == std::string::npos, "the key is not shown");
      }
      meet(options, done);
    });
  }
}

TEST_CASE("of two processes with one rank number, the second is refused") {
  const ReservedPort port;
  std::latch refused(1);
  run_ranks(3, [&](int rank) {
    if (rank == 1) {
      const UniqueFd first = connect_as(1, port);
      LaunchedOptions second = options_at(port, 1, 3);
      second.init_timeout_s = 5;
      const Death death = death_of([&] { make(second); });
      check_equal(death.rank, 1, "the rank that is refused");
      check_contains(death.text, "rank 1 is connected already, says rank 0 at 127.0.0.1 port");
      check_contains(death.text, "Give each process its own rank");
      refused.count_down();
      return;
    }
    if (rank == 2) refused.wait();  // so that rank 0 still waits
    const Death death = death_of([&] { make(options_at(port, rank, 3)); });
    check_equal(death.rank, 1, "the first one was of the job, and has ended");
  });
}

TEST_CASE("a rank that died before all were there may come again, and is named if lost then") {
  const ReservedPort port;
  std::latch came_again(1);
  run_ranks(3, [&](int rank) {
    if (rank == 2) {
      connect_as(2, port);  // and closes it
      const UniqueFd again = connect_as(2, port);
      came_again.count_down();
      return;
    }
    if (rank == 1) came_again.wait();
    const Death death = death_of([&] { make(options_at(port, rank, 3)); });
    check_equal(death.rank, 2, "the rank that is lost");
    check_contains(death.text, "rank 0 cannot start: rank 2 was lost: its connection");
  });
}

TEST_CASE("strangers that say nothing, half of it or nonsense keep no ranks from meeting") {
  const ReservedPort port;
  std::latch done(3), strangers_spoke(1);
  run_ranks(3, [&](int rank) {
    std::vector<UniqueFd> strangers;
    if (rank == 1) {
      net::Hello hello;
      hello.rank = 3'000'000'000;
      hello.job = net::to_name("run 'a'");
      for (const std::string& said :
           {std::string(), std::string(7, '\0'),
            "GET / HTTP/1.1\r\nHost: node1\r\n\r\n" + std::string(1000, 'x'),
            std::string(reinterpret_cast<const char*>(&hello), sizeof hello)}) {
        strangers.push_back(connect_as_stranger(port));
        send_bytes(strangers.back(), said);
      }
      connect_as_stranger(port);  // and gone
      strangers_spoke.count_down();
    } else if (rank == 2) {
      strangers_spoke.wait();
    }
    meet(options_at(port, rank, 3), done);
  });
}

TEST_CASE("ranks that never come are named on all others when the first of them gives up") {
  const ReservedPort port;
  std::vector<Death> deaths(4);
  run_ranks(4, [&](int rank) {
    if (rank >= 2) return;
    if (rank == 1) connect_as_stranger(port);  // so that rank 0 listens
    LaunchedOptions options = options_at(port, rank, 4);
    options.init_timeout_s = rank == 0 ? 3600 : 2;
    options.launch.size_source = "WORLD_SIZE";
    if (rank == 0) options.launch.root_host = "192.0.2.1";
    deaths[static_cast<std::size_t>(rank)] = death_of([&] { make(options); });
  });
  CHECK(deaths[1].rank == 2);
  CHECK_THAT(deaths[1].text, StartsWith("rank 0 waited ") &&
                                 Contains(" s for connections from 2 rank(s): 2, 3. ") &&
                                 Contains("of WORLD_SIZE=4: to run alone, unset it") &&
                                 Contains("Rank 0 is awaited at 192.0.2.1 (MASTER_ADDR), port " +
                                          std::to_string(port.number()) + " (MASTER_PORT + 1)"));
  // Rank 0 looks its address up after it has sent the failure to the others.
  deaths[1].text += ", which is no address of the host that rank 0 is on";
  CHECK(deaths[0] == deaths[1]);
}

TEST_CASE("a rank that hangs after it came is named when the first of the others gives up") {
  const ReservedPort port;
  std::latch came(1), gave_up(2);
  run_ranks(3, [&](int rank) {
    if (rank == 2) {
      const UniqueFd silent = connect_as(2, port);
      came.count_down();
      gave_up.wait();
      return;
    }
    if (rank == 1) came.wait();  // so that its patience is not over before
    LaunchedOptions options = options_at(port, rank, 3);
    options.init_timeout_s = rank == 0 ? 3600 : 2;
    const Death death = death_of([&] { make(options); });
    gave_up.count_down();
    check_equal(death.rank, 2, "the rank that hangs");
    check_contains(death.text, "rank 0 cannot start: rank 2 sent nothing more");
  });
}

TEST_CASE("a failure that comes along with an answer is not lost") {
  std::array<int, 2> fds = {};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) == 0);
  net::Connection root{UniqueFd(fds[0])};
  root.queue("b" + pack_fields({"of 0", "of 1"}));
  root.queue("f" + pack_fields({"2", "rank 2 was lost"}));
  root.flush();
  root.finish_sending();
  std::vector<net::Peer> peers(1);
  peers[0] = {0, UniqueFd(fds[1])};
  net::Star star(1, 2, std::move(peers), Clock::now() + 20s);
  CHECK(star.exchange("of 1") == std::vector<std::string>{"of 0", "of 1"});
  CHECK(death_of([&] { star.exchange("more"); }) == Death{2, "rank 2 was lost"});
}

TEST_CASE("a rank that says nonsense while the ranks meet is named on all of them") {
  const ReservedPort port;
  run_ranks(3, [&](int rank) {
    if (rank < 2) {
      const std::string text = text_of<UsageError>([&] { make(options_at(port, rank, 3)); });
      check(text.starts_with("what rank 2 has put"), text);
      return;
    }
    net::Connection connection(connect_as(2, port));
    connection.queue("nonsense");
    connection.flush();
    std::deque<std::string> messages;
    while (connection.read(messages) != net::Connection::ReadState::Ended) {
      std::this_thread::yield();
    }
  });
}

TEST_CASE("ranks of a launch on several hosts, or with a wrong local rank, refuse to start") {
  const bool is_wrong = GENERATE(true, false);
  const ReservedPort port;
  run_ranks(3, [&](int rank) {
    LaunchedOptions options = options_at(port, rank, 3);
    if (is_wrong) options.launch.local_rank = 0;
    if (!is_wrong) options.host = rank == 1 ? "b" : "a";
    const std::string text = text_of<UsageError>([&] { make(options); });
    check(text.starts_with(is_wrong ? "rank 1 was started with local rank 0, but 1 ranks of its"
                                    : "rank 0 and rank 1 are on different hosts (a and b)"),
          text);
    check(!is_wrong || text.find("RONDE_HOST_ID") != std::string::npos, text);
  });
}

TEST_CASE("a launch that leads nowhere says where it was meant to lead") {
  const ReservedPort port;
  LaunchedOptions options = options_at(port, 1, 2);
  options.init_timeout_s = 0.2;
  SECTION("variables") {
    options.launch.problem = "no";
    CHECK(text_of<UsageError>([&] { make(options); }) == "no");
  }
  SECTION("a name") {
    std::vector<std::string> warnings;
    options.init_timeout_s = 1;
    options.launch.root_host = "no such host";
    options.warn = [&](const std::string& text) { warnings.push_back(text); };
    const std::string text = text_of<GroupError>([&] { make(options); });
    CHECK_THAT(text, StartsWith("rank 1 cannot find rank 0: MASTER_ADDR, no such host, does not "
                                "resolve: "));
    CHECK(warnings == std::vector<std::string>{text + ". It is tried again"});
  }
  SECTION("an address of one link") {
    options.launch.root_host = GENERATE("fe80::1%lo", "fe80::1");
    CHECK_THAT(text_of<GroupError>([&] { make(options); }),
               Contains(options.launch.root_host +
                        ", does not resolve: it has no address that holds beyond one link"));
  }
  SECTION("nobody listens") {
    options.init_timeout_s = 1;
    const Death death = death_of([&] { make(options); });
    CHECK(death.rank == 0);
    CHECK_THAT(death.text,
               StartsWith("rank 1 could not connect to rank 0 within ") &&
                   Contains(" s: 127.0.0.1 port " + std::to_string(port.number()) +
                            " (Connection refused)") &&
                   Contains("which is this rank's own host: from another one it leads nowhere"));
  }
  SECTION("somebody else does") {
    REQUIRE(::listen(port.fd(), 8) == 0);
    options.init_timeout_s = 1;
    std::jthread stranger([&] {
      while (true) {
        const UniqueFd socket(::accept(port.fd(), nullptr, nullptr));
        if (!socket) return;
        const std::string greeting = "220 mail.example ESMTP, ready at your service, at any time";
        ::send(socket.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
      }
    });
    const std::string text = death_of([&] { make(options); }).text;
    ::shutdown(port.fd(), SHUT_RDWR);
    CHECK_THAT(text, Contains("(answered by a stranger)"));
  }
}

TEST_CASE("rank 0's own address is not called foreign: link-local, as IPv6, of a link down") {
  const ReservedPort port;  // of the host, which the thread may leave
  const auto is_called_foreign = [&](const std::string& address) {
    LaunchedOptions options = options_at(port, 0, 2);
    options.launch.root_host = address;
    options.init_timeout_s = 0.01;
    const std::string text = text_of<GroupError>([&] { make(options); });
    check_contains(text, "Rank 0 is awaited at " + address);
    return text.find("no address of the host that rank 0 is on") != std::string::npos;
  };
  run_ranks(1, [&](int) {
    std::vector<std::string> own = {"127.0.0.1", "::ffff:127.0.0.1"};
    // A network of this thread's own, whose interface is down; the host's where that is refused.
    if (::unshare(CLONE_NEWNET) == 0) {
      check(std::system("ip addr add 10.9.9.9/32 dev lo && ip addr add 169.254.9.9/32 dev lo && "
                        "ip addr add fe80::9/64 dev lo && ip addr add fd00::9/64 dev lo") == 0,
            "addresses of the interface");
      own.insert(own.end(), {"10.9.9.9", "::ffff:10.9.9.9", "169.254.9.9", "::ffff:169.254.9.9",
                             "fe80::9", "fe80::9%lo", "fd00::9"});
    }
    for (const std::string& address : own) {
      check(!is_called_foreign(address), address + " is rank 0's own");
    }
    for (const char* const address : {"203.0.113.1", "::ffff:203.0.113.1", "fe80::beef:1"}) {
      check(is_called_foreign(address), std::string(address) + " is not");
    }
  });
}

TEST_CASE("what was said in one handshake proves nothing in another") {
  const net::JobKey key(kKey, "");
  net::Greeting greeting, other_greeting;
  other_greeting.nonce.back() = 1;
  net::Hello hello, other_hello;
  hello.proof = net::proof_of_hello(key, greeting, hello);
  other_hello.rank = 1;
  other_hello.proof = hello.proof;
  CHECK(net::is_proved(key, greeting, hello));
  CHECK_FALSE(net::is_proved(key, other_greeting, hello));
  CHECK_FALSE(net::is_proved(key, greeting, other_hello));
  CHECK_FALSE(net::is_proved(net::JobKey(kKey, "token"), greeting, hello));
  CHECK_FALSE(net::is_proved(net::JobKey("wrong horse battery", ""), greeting, hello));

  net::Answer answer;
  answer.proof = net::proof_of_answer(key, greeting, hello, answer);
  CHECK(net::is_proved(key, greeting, hello, answer));
  CHECK_FALSE(net::is_proved(key, other_greeting, hello, answer));
  answer.size = 9;
  CHECK_FALSE(net::is_proved(key, greeting, hello, answer));
  answer.proof = hello.proof;  // reflected
  CHECK_FALSE(net::is_proved(key, greeting, hello, answer));
}
