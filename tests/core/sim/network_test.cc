// SPDX-License-Identifier: Apache-2.0
#include "core/src/sim/network.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

namespace ronde {
namespace {

using std::chrono::nanoseconds;

constexpr std::uint64_t kLarge = 1'000'000;

/// Ranks 0, 1, 2, ... on the given hosts, with g = 1 us, G = 1 ns and L = 10 us.
struct Network {
  explicit Network(std::vector<int> host_of, double gap = 1e-6) {
    options.host_of = std::move(host_of);
    options.network.gap = gap;
    options.on_message = [this](const SimulatedMessage& message) { messages.push_back(message); };
    network.emplace(events, options);
  }

  void send(int from, int to, std::uint64_t bytes, nanoseconds posted = {}) {
    network->send(from, to, bytes, false, TimePoint(posted), {}, {});
  }
  /// Returns when the messages arrived, in that order.
  std::vector<nanoseconds> run() {
    while (!events.empty()) events.run_next();
    std::vector<nanoseconds> times;
    for (const SimulatedMessage& message : messages) times.push_back(message.arrived);
    return times;
  }

  SimulationOptions options;
  std::vector<SimulatedMessage> messages;
  EventQueue events;
  std::optional<SimulatedNetwork> network;
};

using Times = std::vector<nanoseconds>;

TEST_CASE("a message takes the latency, and its bytes the gap of the link") {
  Network one({0, 1});
  one.send(0, 1, kLarge, nanoseconds(500));
  CHECK(one.run() == Times{nanoseconds(500 + 1'000'000 + 10'000)});
  Network small({0, 1});
  small.send(0, 1, 100);
  CHECK(small.run() == Times{nanoseconds(100 + 10'000)});
}

TEST_CASE("a host begins a message after the gap, and a small one waits for no large one") {
  Network two({0, 0, 1});
  two.send(0, 2, kLarge);
  two.send(1, 2, 100, nanoseconds(200));
  two.send(0, 2, 100, nanoseconds(300));
  const nanoseconds small(10'000 + 100);
  CHECK(two.run() ==
        Times{small + nanoseconds(1000), small + nanoseconds(2000), nanoseconds(1'010'000)});
}

TEST_CASE("two messages on a link get half of it each, and all of it alone") {
  Network halves({0, 1, 2}, 0);
  halves.send(0, 1, kLarge);
  halves.send(0, 2, kLarge / 2);
  // The shorter one ends after 1 ms, and the other one has sent as much: the rest takes 0.5 ms.
  CHECK(halves.run() == Times{nanoseconds(1'010'000), nanoseconds(1'510'000)});
}

// 0 -> 2 has the link into host 2 in common with 1 -> 2, and that out of host 1 with none.
TEST_CASE("a message that shares one of its links gets the share of that one") {
  Network three({0, 1, 2, 3});
  three.send(0, 2, kLarge);
  three.send(1, 2, kLarge);
  three.send(3, 1, kLarge);
  CHECK(three.run() ==
        Times{nanoseconds(1'010'000), nanoseconds(2'010'000), nanoseconds(2'010'000)});
}

TEST_CASE("a message that begins later takes its share from then on") {
  Network two({0, 0, 1});
  two.send(0, 2, kLarge);
  two.send(1, 2, kLarge, nanoseconds(500'000));
  CHECK(two.run() == Times{nanoseconds(1'510'000), nanoseconds(2'010'000)});
}

TEST_CASE("within a host, the network is not used") {
  Network two({0, 0});
  two.network->send(0, 1, kLarge, true, TimePoint(nanoseconds(7)), {}, {});
  CHECK(two.run() == Times{nanoseconds(3007)});
}

TEST_CASE("what a dead rank has not sent is lost, and its share of the link is free") {
  Network two({0, 0, 1});
  two.send(0, 2, kLarge);
  two.send(1, 2, kLarge);
  two.send(1, 2, 100, nanoseconds(900'000));
  two.send(2, 1, 100, nanoseconds(495'000));
  two.events.at(TimePoint(nanoseconds(500'000)), [&] { two.network->cut(1); });
  // The second began 1 us later, so that rank 0 had sent 250,500 bytes.
  CHECK(two.run() == Times{nanoseconds(500'000 + 749'500 + 10'000)});
}

TEST_CASE("a stopped rank gets its messages once it goes on") {
  Network two({0, 1});
  two.send(0, 1, 100);
  two.network->stop(1);
  int calls = 0;
  two.network->at(TimePoint(nanoseconds(5)), 1, [&] { ++calls; });
  two.events.at(TimePoint(nanoseconds(50'000)), [&] {
    CHECK(calls == 0);
    two.network->go_on(1);
  });
  CHECK(two.run() == Times{nanoseconds(50'000)});
  CHECK(calls == 1);
}

TEST_CASE("a processor does one thing after the other") {
  Network one({0});
  one.events.at(TimePoint(nanoseconds(100)), [&] {
    one.network->charge(0, nanoseconds(30));
    one.network->charge(0, nanoseconds(20));
  });
  one.events.at(TimePoint(nanoseconds(140)), [&] { one.network->charge(0, nanoseconds(5)); });
  one.run();
  CHECK(one.network->time(0) == TimePoint(nanoseconds(155)));
  CHECK(one.network->charged(0) == nanoseconds(55));
}

}  // namespace
}  // namespace ronde
