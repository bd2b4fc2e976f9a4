// SPDX-License-Identifier: Apache-2.0
// Messages that make no sense, from a rank that is broken or runs something else: rank 0 names it.
#include <catch2/catch.hpp>

#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"
#include "tests/support/ranks/results_of_ranks.h"
#include "tests/support/ranks/simulated_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

/// Options of rank 0, whose rank 1 leads a host with rank 2, and rank 3 a host of its own.
RuntimeOptions options_with(SimulatedRanks::Script script) {
  script.host_of = {0, 1, 1, 2};
  static const inproc::Group group(std::vector<int>{0, 1, 1, 2});
  RuntimeOptions options = options_of(group, 0);
  options.make_transport = [script = std::move(script)] {
    return std::make_unique<SimulatedRanks>(script, std::make_shared<SimulatedTraffic>());
  };
  return options;
}

Incoming from_rank_1(const Message& message) {
  return {Incoming::Kind::Message, 1, encode(message)};
}

/// The exchanges of a start in which all agree.
std::vector<std::string> exchanges() {
  return {config_digest(group_wide_fingerprint(test_config())), "", ""};
}

void check_named(const std::function<void()>& action, const std::string& text) {
  const Death death = death_of(action);
  CHECK(death.rank == 1);
  CHECK_THAT(death.text,
             Catch::StartsWith("rank 1 sent an invalid message: ") && Catch::Contains(text));
}

/// The transport of a rank for which all ranks of each stall that it is told of become rank 9.
class WrongStalls final : public Transport {
 public:
  explicit WrongStalls(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  std::string_view name() const noexcept override { return inner_->name(); }
  const Topology& topology() const noexcept override { return inner_->topology(); }
  void send(int peer, std::string_view message) override { inner_->send(peer, message); }
  Incoming poll() override {
    Incoming incoming = inner_->poll();
    if (incoming.kind != Incoming::Kind::Message) return incoming;
    Message message = decode(incoming.bytes);
    if (auto* const stall = std::get_if<StallMessage>(&message)) {
      for (StalledOperation& each : stall->operations) each.missing_ranks = {{9, 9}};
    }
    incoming.bytes = encode(message);
    return incoming;
  }
  bool wait(Clock::time_point deadline, int descriptor) override {
    return inner_->wait(deadline, descriptor);
  }
  void wake() noexcept override { inner_->wake(); }
  int wake_fd() const noexcept override { return inner_->wake_fd(); }
  void close(bool graceful, Clock::time_point deadline) override {
    inner_->close(graceful, deadline);
  }
  StatsGroup stats() const override { return inner_->stats(); }

 private:
  const std::unique_ptr<Transport> inner_;
};

}  // namespace

TEST_CASE("a report of a stall of a rank that does not exist ends the group") {
  Config config = test_config();
  config.stall_warn_s = 0.02;
  const inproc::Group group(std::vector<int>{0, 1});
  const auto deaths = on_each_rank(2, [&](int rank) {
    RuntimeOptions options = options_of(group, rank, config);
    if (rank == 1) {
      options.make_transport = [make = options.make_transport] {
        return std::make_unique<WrongStalls>(make());
      };
    }
    Runtime runtime(std::move(options));
    return death_of([&] { runtime.run(barrier_request(rank == 0 ? "a" : "b")); });
  });
  check_same_death(deaths, 0,
                   {"rank 0 sent an invalid message: it reports a stall of a rank that does not"});
}

TEST_CASE("a rank that sends an invalid message in the start is named") {
  const std::vector<std::pair<Incoming, std::string>> rows = {
      {from_rank_1(BootstrapMessage{3, {""}}), "it sends for rank 3, which is not below it"},
      {from_rank_1(BootstrapMessage{4, {""}}), "it sends for rank 4"},
      {from_rank_1(BootstrapMessage{-1, {""}}), "it sends for rank -1"},
      {from_rank_1(BootstrapMessage{1, {}}), "without its part"},
      {from_rank_1(FinishedMessage{}), "unexpected control message"},
      {{Incoming::Kind::Message, 1, "\xff"}, "unknown type"}};
  for (const auto& [incoming, text] : rows) {
    const RuntimeOptions options = options_with({.exchanges = {}, .afterwards = {incoming}});
    check_named([&] { Runtime{options}; }, text);
  }
}

TEST_CASE("a rank that sends rank 0 an invalid message ends the group and is named") {
  HostReadyMessage with_slot{{{{1}, {}}}};
  with_slot.parts[0].ready.cached.set(5);
  ExchangeRequest of_other;
  of_other.key.ranks = {0, 3};
  of_other.rank = 3;
  ExchangeRequest of_nobody = of_other;
  of_nobody.key.ranks = {1, 9};
  of_nobody.rank = 1;
  const std::vector<std::pair<Incoming, std::string>> rows = {
      {from_rank_1(HostReadyMessage{{{{2, 3}, {}}}}), "it sends for rank 3"},
      {from_rank_1(HostReadyMessage{{{{4}, {}}}}), "it sends for rank -1"},
      {from_rank_1(HostReadyMessage{{{{-7}, {}}}}), "it sends for rank -1"},
      {from_rank_1(FinishedMessage{{1, 4}, {"", ""}}), "it sends for rank 4"},
      {from_rank_1(of_other), "it sends for rank 3"},
      {from_rank_1(of_nobody), "rank 9 of the process set of ranks 1,9 does not exist"},
      {from_rank_1(ResultsMessage{0, 3, {}}), "it sends for rank 3"},
      {from_rank_1(ResultsMessage{0, 1, {}}), "it verifies results, which rank 0 does not"},
      {from_rank_1(with_slot), "a cache slot that was never assigned"},
      {{Incoming::Kind::Message, 1, "\xff"}, "unknown type"}};
  for (const auto& [incoming, text] : rows) {
    Runtime runtime(options_with({.exchanges = exchanges(), .afterwards = {incoming}}));
    check_named([&] { runtime.run(barrier_request()); }, text);
  }
}

TEST_CASE("members of messages that have members themselves are refused") {
  OpSpec inner;
  inner.members = {OpSpec()};
  OpSpec outer;
  outer.members = {inner};
  ReadyMessage ready;
  ready.requests = {{"key", share(outer), true}};
  CHECK_THROWS_WITH(decode(encode(HostReadyMessage{{{{1}, ready}}})), Catch::Contains("damaged"));
  RankRows rows;
  rows.members.emplace_back().members.emplace_back();
  DecisionMessage decision;
  decision.responses.emplace_back().rows = rows;
  CHECK_THROWS_WITH(decode(encode(decision)), Catch::Contains("damaged"));
}
