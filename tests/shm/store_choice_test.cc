// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/slots/store_choice.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <set>
#include <utility>

namespace ronde::test {
namespace {

using shm::kStoreKinds;
using shm::StoreChoice;
using shm::StoreTrials;

constexpr std::size_t kBytes = std::size_t{1} << 20;

/// Runs stretches on a machine where kind `fast` takes 100 ps per byte, and the others 500.
void run_on(StoreTrials& trials, std::size_t fast, int stretches) {
  for (int i = 0; i < stretches; ++i) {
    const std::size_t kind = trials.next();
    trials.learn(kind, kind == fast ? 100 : 500);
  }
}

TEST_CASE("the fastest kind of stores is found, and found again when the machine changes") {
  StoreTrials trials;
  CHECK(trials.chosen() == 0);
  for (const std::size_t fast : {2U, 1U, 3U, 0U, 2U}) {
    // A slowdown is noticed soon, but not more often than every 64 stretches.
    run_on(trials, fast, 200);
    CAPTURE(fast);
    CHECK(trials.chosen() == fast);
    CHECK(trials.next() == fast);
    CHECK(trials.speed(fast) == 100);
  }
}

TEST_CASE("a kind that became the fastest unnoticed is found now and then") {
  StoreTrials trials;
  run_on(trials, 1, 200);
  // The chosen kind is as fast as before, but another is faster now.
  bool found = false;
  for (int i = 0; i < 3000 && !found; ++i) {
    const std::size_t kind = trials.next();
    trials.learn(kind, kind == 1 ? 100 : kind == 3 ? 50 : 500);
    found = trials.chosen() == 3;
  }
  CHECK(found);
}

TEST_CASE("neither a slow stretch, a small gain nor cold memory at first changes the kind") {
  StoreTrials trials;
  run_on(trials, 0, 32);  // a warm-up and a trial
  for (int i = 0; i < 63; ++i) {
    CHECK(trials.next() == 0);
    trials.learn(0, i % 2 == 0 ? 9000 : 100);
  }
  StoreTrials close;
  for (std::size_t i = 0; i < 100; ++i) close.learn(close.next(), close.next() == 2 ? 95 : 100);
  CHECK(close.chosen() == 0);
  StoreTrials cold;
  for (std::size_t i = 0; i < 100; ++i) {
    const std::size_t kind = cold.next();
    cold.learn(kind, i < 15 ? 1000 : kind == 0 ? 100 : 300);
  }
  CHECK(cold.chosen() == 0);
}

using Kinds = std::pair<Store, Store>;

Kinds kinds_of(const StoreChoice::Use& use, std::size_t bytes) {
  return {use.buffer(bytes), use.output(bytes)};
}

TEST_CASE("all kinds are tried within one large operation, and the others follow the leader") {
  std::atomic<std::uint64_t> word{0};
  StoreChoice leader(ShmOptions::Stores::Auto, true, word);
  StoreChoice follower(ShmOptions::Stores::Auto, false, word);
  std::set<Kinds> seen;
  StoreChoice::Use use = leader.begin(64 * kBytes, true);
  for (int i = 0; i < 80; ++i) {
    use.move(kBytes);
    seen.insert(kinds_of(use, kBytes));
    CHECK(kinds_of(follower.begin(64 * kBytes, true), kBytes) == kinds_of(use, kBytes));
    CHECK(kinds_of(follower.borrow(64 * kBytes, true), kBytes) == kinds_of(use, kBytes));
    // Other sizes, and operations out of place, have choices of their own.
    CHECK(kinds_of(follower.begin(kBytes, true), kBytes) == Kinds{});
    CHECK(kinds_of(follower.begin(64 * kBytes, false), kBytes) == Kinds{});
  }
  use.end();
  CHECK(seen.size() == kStoreKinds);
  StatsGroup stats;
  leader.add_stats(stats);
  for (const auto& [name, value] : stats.counters) {
    if (name == "store_trials") CHECK(value == 1);
    if (name == "streamed_slot_bytes") CHECK(value >= 12 * kBytes);
  }
}

TEST_CASE("small operations and small pieces are stored regularly; a setting holds for all") {
  const Kinds regular = {Store::Regular, Store::Regular};
  const Kinds streaming = {Store::Streaming, Store::Streaming};
  std::atomic<std::uint64_t> word{~std::uint64_t{0}};  // the leader chose streaming for all
  StoreChoice follower(ShmOptions::Stores::Auto, false, word);
  CHECK(kinds_of(follower.begin(kBytes, true), kBytes) == streaming);
  CHECK(kinds_of(follower.begin(1000, true), 1000) == regular);
  CHECK(kinds_of(follower.begin(kBytes, true), 64) == regular);
  StoreChoice always_regular(ShmOptions::Stores::Regular, false, word);
  CHECK(kinds_of(always_regular.begin(kBytes, true), kBytes) == regular);
  StoreChoice always_streaming(ShmOptions::Stores::Streaming, true, word);
  CHECK(kinds_of(always_streaming.begin(kBytes, true), kBytes) == streaming);
}

}  // namespace
}  // namespace ronde::test
