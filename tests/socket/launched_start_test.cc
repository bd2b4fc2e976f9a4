// SPDX-License-Identifier: Apache-2.0
// Ranks, as threads, that meet where a launcher's variables say, among strangers and mistakes.
#include "backends/socket/launched/launched_start.h"

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <deque>
#include <latch>

#include "backends/socket/handshake_client.h"
#include "backends/socket/launched/star.h"
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

/// Meets the others, hears of each child and closes once all have.
Topology meet(const LaunchedOptions& options, std::latch& done) {
  const std::unique_ptr<Transport> transport = make(options);
  const Topology& topology = transport->topology();
  if (topology.parent() >= 0) transport->send(topology.parent(), "here");
  for (std::size_t heard = 0; heard < topology.children().size(); ++heard) {
    const Incoming incoming = transport->receive(Clock::now() + 20s);
    check(incoming.kind == Incoming::Kind::Message && incoming.bytes == "here", "a child's word");
  }
  done.arrive_and_wait();
  transport->close(true, Clock::now() + 5s);
  return topology;
}

/// A connection of somebody who is no rank, once rank 0 listens.
UniqueFd connect_as_stranger(const ReservedPort& port) {
  const net::Address address = net::tcp_address("127.0.0.1", port.number());
  while (true) {  // the watchdog ends it
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto* const to = reinterpret_cast<const sockaddr*>(&address.storage);
    if (::connect(socket.get(), to, address.length) == 0) return socket;
    std::this_thread::yield();
  }
}

void say(const UniqueFd& socket, const std::string& bytes) {
  const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  check(sent == static_cast<ssize_t>(bytes.size()), "it was sent");
}

/// The connection of a rank of three that rank 0 has admitted.
UniqueFd connect_as(int rank, const ReservedPort& port) {
  const net::Credentials credentials = {"run 'a'", 3, net::JobKey("", "")};
  net::HandshakeClient client(rank, 0, credentials, {net::tcp_address("127.0.0.1", port.number())});
  return client.run(Clock::now() + 20s);
}

}  // namespace

TEST_CASE("ranks meet at the port of their launch, with a key and without one") {
  for (const int hosts : {1, 2}) {
    for (const std::string& key : {std::string(), kKey}) {
      for (int size = 2; size <= 4; ++size) {
        INFO(size << " ranks on " << hosts << " hosts, key '" << key << "'");
        const ReservedPort port;
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

TEST_CASE("ranks of one host need no name, and open no port to others") {
  const ReservedPort port;
  std::latch done(2);
  run_ranks(2, [&](int rank) {
    LaunchedOptions options = options_at(port, rank, 2);
    options.launch.one_host = true;
    options.launch.root_host = "no such host";
    options.warn = [](const std::string& text) { check(false, text); };
    meet(options, done);
  });
}

TEST_CASE("a launch of one rank awaits nobody, and opens no port") {
  const ReservedPort port;
  REQUIRE(::listen(port.fd(), 1) == 0);
  LaunchedOptions options = options_at(port, 0, 1);
  options.launch.local_rank = -1;
  options.warn = [](const std::string& text) { check(false, text); };
  CHECK(make(options)->topology().size == 1);
}

TEST_CASE("a start again uses the same port") {
  const ReservedPort port;
  for (int start = 0; start < 3; ++start) {
    std::latch done(3);
    run_ranks(3, [&](int rank) { meet(options_at(port, rank, 3), done); });
  }
}

TEST_CASE("rank 0 listens at a port of the range, and says which it tried") {
  const ReservedPort taken;
  REQUIRE(::listen(taken.fd(), 1) == 0);
  const std::string number = std::to_string(taken.number());
  std::uint16_t port = 0;
  const auto listen = [&](std::uint16_t first, std::uint16_t last) {
    return text_of<Error>([&] { net::listen_tcp({first, last}, net::Reach::ThisHost, port); });
  };
  CHECK(listen(taken.number(), taken.number()) ==
        "this rank cannot listen at TCP port " + number + ": Address already in use");
  const ReservedPort free;
  CHECK(net::listen_tcp({free.number(), free.number()}, net::Reach::Everybody, port));
  CHECK(port == free.number());
}

TEST_CASE("who does not belong to the job is told why, and the job starts without him") {
  using Change = std::function<void(LaunchedOptions&)>;
  struct Row {
    std::string key;
    Change change;
    std::string text;
  };
  const std::vector<Row> rows = {
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
       "rank 5 was started as one of 8 ranks, rank 0 at 127.0.0.1 port "}};
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
        const std::string got = text_of<GroupError>([&] { make(wrong); });
        check(got.starts_with(text), got);
        check(got.find("horse") == std::string::npos, "the key is not shown");
      }
      meet(options, done);
    });
  }
}

TEST_CASE("of two jobs at one port one starts, and the other's ranks name both") {
  const ReservedPort port;
  std::latch done(2);
  run_ranks(2, [&](int rank) {
    const LaunchedOptions options = options_at(port, rank, 2);
    if (rank == 1) {
      connect_as_stranger(port);  // so that rank 0 listens
      LaunchedOptions other = options_at(port, 7, 8);
      other.launch.job = "run 'b'";
      other.init_timeout_s = 1;
      const Death death = death_of([&] { make(other); });
      check_equal(death.rank, 0, "the rank to blame");
      check_contains(death.text, "rank 7 could not connect to rank 0");
      check_contains(death.text, "rank 7 is of run 'b', rank 0 at 127.0.0.1 port");
      check_contains(death.text, "of run 'a': give each job a RONDE_PORT of its own");
    }
    meet(options, done);
  });
}

TEST_CASE("of two processes with one rank number, the second is refused") {
  const ReservedPort port;
  std::latch refused(1);
  run_ranks(3, [&](int rank) {
    if (rank == 1) {
      const UniqueFd first = connect_as(1, port);
      LaunchedOptions second = options_at(port, 1, 3);
      second.init_timeout_s = 1;
      const Death death = death_of([&] { make(second); });
      check_equal(death.rank, 1, "the rank that is refused");
      check_contains(death.text, "rank 1 is there already, says rank 0 at 127.0.0.1 port");
      check_contains(death.text, "Give each process its own rank");
      refused.count_down();
      return;
    }
    if (rank == 2) refused.wait();  // so that rank 0 still waits
    const Death death = death_of([&] { make(options_at(port, rank, 3)); });
    check_equal(death.rank, 1, "the first one was of the job, and has ended");
  });
}

TEST_CASE("a rank that died before all were there may come again") {
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
    check_equal(death_of([&] { make(options_at(port, rank, 3)); }).rank, 2, "who is lost now");
  });
}

TEST_CASE("strangers that say nothing, half of it or nonsense keep no ranks from meeting") {
  const ReservedPort port;
  std::latch done(3), strangers_spoke(1);
  run_ranks(3, [&](int rank) {
    std::vector<UniqueFd> strangers;
    if (rank == 1) {
      strangers.push_back(connect_as_stranger(port));  // silent
      strangers.push_back(connect_as_stranger(port));
      say(strangers.back(), std::string(7, '\0'));
      strangers.push_back(connect_as_stranger(port));
      say(strangers.back(), "GET / HTTP/1.1\r\nHost: node1\r\n\r\n" + std::string(1000, 'x'));
      net::Hello hello;
      hello.rank = 3'000'000'000;
      hello.job = net::to_name("run 'a'");
      strangers.push_back(connect_as_stranger(port));
      say(strangers.back(), {reinterpret_cast<const char*>(&hello), sizeof hello});
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
    deaths[static_cast<std::size_t>(rank)] = death_of([&] { make(options); });
  });
  CHECK(deaths[0].rank == 2);
  CHECK_THAT(deaths[0].text, StartsWith("rank 0 waited ") &&
                                 Contains(" s for connections from 2 rank(s): 2, 3. ") &&
                                 Contains("of WORLD_SIZE=4: to run alone, unset it") &&
                                 Contains("Rank 0 is awaited at 127.0.0.1 (MASTER_ADDR), port " +
                                          std::to_string(port.number()) + " (MASTER_PORT + 1)"));
  CHECK(deaths[1] == deaths[0]);
}

TEST_CASE("rank 0 remarks that it is awaited elsewhere once the others know who is missing") {
  const ReservedPort port;
  run_ranks(3, [&](int rank) {
    if (rank == 2) return;
    LaunchedOptions options = options_at(port, rank, 3);
    options.init_timeout_s = 2;
    if (rank == 0) options.launch.root_host = "192.0.2.1";
    const Death death = death_of([&] { make(options); });
    check_equal(death.rank, 2, "the rank that is missing");
    const std::string remark = ", which is no address of the host that rank 0 is on";
    check(death.text.ends_with(remark) == (rank == 0), death.text);
  });
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
    check_contains(death.text, "rank 0 cannot start: rank 2 said nothing more");
  });
}

TEST_CASE("a rank that is lost while the others wait for its word is named on all of them") {
  const ReservedPort port;
  run_ranks(3, [&](int rank) {
    if (rank == 2) {
      connect_as(2, port);  // and closes it
      return;
    }
    const Death death = death_of([&] { make(options_at(port, rank, 3)); });
    check_equal(death.rank, 2, "the rank that is lost");
    check_contains(death.text, "rank 0 cannot start: rank 2 was lost: its connection");
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

TEST_CASE("ranks of several hosts, or of a wrong local rank, all refuse to start") {
  using Change = std::function<void(int, LaunchedOptions&)>;
  const std::vector<std::pair<Change, std::string>> rows = {
      {[](int rank, auto& options) { options.host = rank == 1 ? "b" : "a"; },
       "rank 0 and rank 1 are on different hosts (a and b): without MPI or UCX"},
      {[](int, auto& options) { options.launch.local_rank = 0; },
       "rank 1 was started with local rank 0, but 1 ranks of its host come before it"}};
  for (const auto& [change, text] : rows) {
    const ReservedPort port;
    run_ranks(3, [&, change = change, text = text](int rank) {
      LaunchedOptions options = options_at(port, rank, 3);
      change(rank, options);
      const std::string got = text_of<UsageError>([&] { make(options); });
      check(got.starts_with(text), got);
      check(options.launch.local_rank == -1 || got.find("RONDE_HOST_ID") != std::string::npos, got);
    });
  }
}

TEST_CASE("a port that is taken is named, with where it comes from and what to set") {
  const ReservedPort port;
  REQUIRE(::listen(port.fd(), 1) == 0);
  CHECK_THAT(text_of<GroupError>([&] { make(options_at(port, 0, 2)); }),
             StartsWith("rank 0 cannot await the others at port " + std::to_string(port.number()) +
                        " (MASTER_PORT + 1): ") &&
                 Contains("Address already in use") && Contains("a free one by RONDE_PORT"));
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
    options.launch.root_host = "fe80::1%lo";
    CHECK_THAT(text_of<GroupError>([&] { make(options); }),
               Contains("fe80::1%lo, does not resolve: it has no address that holds beyond one"));
  }
  SECTION("an address of some link") {
    options.launch.root_host = "fe80::1";
    CHECK_THAT(text_of<GroupError>([&] { make(options); }), Contains("holds beyond one link"));
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
