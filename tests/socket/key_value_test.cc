// SPDX-License-Identifier: Apache-2.0
// Starts through a key-value store. Ranks are threads.
#include "backends/socket/key_value.h"

#include <catch2/catch.hpp>
#include <cctype>

#include "tests/socket/trees.h"
#include "tests/support/fakes/memory_store.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Catch::Contains;
using Change = std::function<void(int rank, KeyValueOptions& options)>;

constexpr double kShort = 0.3;

KeyValueOptions options_of(MemoryStore& store, int rank, int size) {
  KeyValueOptions options;
  options.start = store.start(rank, size);
  options.init_timeout_s = 20;
  return options;
}

std::unique_ptr<Transport> make(const KeyValueOptions& options) {
  return key_value_transport_factory(options)();
}

/// Returns what each of `size` ranks, whose options `change` alters, throws: "usage: text",
/// "group <rank>: text", or nothing. Ranks for which `comes` returns false are not started.
std::vector<std::string> errors_of(
    int size, const Change& change,
    const std::function<bool(int)>& comes = [](int) { return true; }) {
  MemoryStore store;
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  run_ranks(size, [&](int rank) {
    if (!comes(rank)) return;
    KeyValueOptions options = options_of(store, rank, size);
    change(rank, options);
    try {
      make(options);
    } catch (const UsageError& error) {
      errors[static_cast<std::size_t>(rank)] = std::string("usage: ") + error.what();
    } catch (const GroupError& error) {
      errors[static_cast<std::size_t>(rank)] =
          "group " + std::to_string(error.failed_rank()) + ": " + error.what();
    }
  });
  return errors;
}

/// Has the ranks put each of their values at the same time, so that none misses another one,
/// however short it waits.
void put_together(std::barrier<>& barrier, KeyValueOptions& options) {
  options.init_timeout_s = kShort;
  options.start.put = [&barrier, put = options.start.put](const std::string& key,
                                                          const std::string& value) {
    put(key, value);
    barrier.arrive_and_wait();
  };
}

Topology meet(const KeyValueOptions& options, std::latch& done) {
  return meet_and_close(make(options), done);
}

}  // namespace

TEST_CASE(
    "one to four ranks meet through a store that serves two starts, on one host and several") {
  for (const int hosts : {1, 2}) {
    for (int size = 1; size <= 4; ++size) {
      INFO(size << " ranks on " << hosts << " hosts");
      MemoryStore store;
      std::latch done(2 * size);
      run_ranks(2 * size, [&](int thread) {
        const int rank = thread % size;
        KeyValueOptions options = options_of(store, rank, size);
        options.start.prefix = "job/" + std::to_string(thread / size);
        options.start.local_rank = rank / hosts;
        if (hosts > 1) options.host = "host " + std::to_string(rank % hosts);
        options.one_host = hosts == 1;
        options.offer_loopback = true;
        const Topology topology = meet(options, done);
        check(topology.rank == rank && topology.size == size, "rank and size");
        check(topology.local_rank == rank / hosts, "local rank");
        check(topology.hosts() == std::min(hosts, size), "hosts");
      });
      const auto count = static_cast<std::size_t>(size);
      CHECK(store.values().size() == (size == 1 ? 0 : 2 * 3 * count));
      for (const auto& [key, value] : store.values()) {
        CHECK_THAT(key, Catch::StartsWith("job/"));
        CHECK(std::ranges::all_of(value, [](unsigned char c) { return std::isgraph(c); }));
        CHECK(value.size() < 1000);
      }
    }
  }
}

TEST_CASE("a get may wait or say that there is nothing yet, and a late rank is waited for") {
  MemoryStore store;
  std::atomic<int> asked_in_vain = 0;
  std::latch done(3);
  run_ranks(3, [&](int rank) {
    KeyValueOptions options = options_of(store, rank, 3);
    // Rank 2 comes once rank 0 has asked for it many times; the others block in get.
    options.start.get = [&, rank, get = options.start.get](const std::string& key) {
      auto value = get(key);
      if (rank == 0 && !value) ++asked_in_vain;
      while (rank > 0 && !value) {
        std::this_thread::yield();
        value = get(key);
      }
      return value;
    };
    while (rank == 2 && asked_in_vain < 12) std::this_thread::yield();
    meet(options, done);
  });
  CHECK(asked_in_vain >= 12);
}

TEST_CASE("ranks that do not come are named, all of them") {
  std::barrier two(2);
  const auto errors = errors_of(
      4, [&](int, KeyValueOptions& options) { put_together(two, options); },
      [](int rank) { return rank % 2 == 0; });
  for (const std::size_t rank : {0, 2}) {
    CHECK_THAT(errors[rank], Catch::StartsWith("group 1: rank " + std::to_string(rank)) &&
                                 Contains(" s for rank(s) 1, 3 of 4 to appear") &&
                                 Contains("the first at key 'ronde/0/1'") &&
                                 Contains("were not started"));
  }
}

TEST_CASE("what a callback throws fails its rank with the text, and the others miss it") {
  // The rank that fails leaves the barrier once its last value is there, if it has put any: either
  // both of the others find it, or none.
  using Fail = std::function<void(KeyValueStart&, std::barrier<>&)>;
  const std::vector<std::pair<std::string, Fail>> rows = {
      {"put('ronde/0/1') of the key-value store threw: disk full",
       [](KeyValueStart& start, std::barrier<>& barrier) {
         start.put = [&barrier](auto&, auto&) {
           barrier.arrive_and_drop();
           throw std::runtime_error("disk full");
         };
       }},
      {"get('ronde/0/0') of the key-value store threw: an exception that",
       [](KeyValueStart& start, std::barrier<>& barrier) {
         start.get = [&barrier](auto&) -> std::optional<std::string> {
           barrier.arrive_and_drop();
           throw 7;
         };
       }}};
  for (const auto& [text, fail] : rows) {
    INFO(text);
    std::barrier three(3);
    const auto errors = errors_of(3, [&, fail = fail](int rank, KeyValueOptions& options) {
      rank == 1 ? fail(options.start, three) : put_together(three, options);
    });
    CHECK_THAT(errors[1], Catch::StartsWith("group 1: rank 1 cannot start: " + text));
    for (const std::size_t other : {0, 2}) {
      CHECK_THAT(errors[other],
                 Catch::StartsWith("group 1: rank ") && Contains(" s for rank(s) 1 of 3 to"));
    }
  }
}

TEST_CASE("ranks that were told what does not fit together all refuse, with one text") {
  const std::vector<std::pair<Change, std::string>> rows = {
      {[](int rank, auto& options) { options.start.local_rank = rank % 2; },
       "rank 2 was started with local rank 0, but 2 ranks of its host come before it"},
      {[](int rank, auto& options) { options.start.local_rank = rank - 3; },
       "rank 0 was started with local rank -3"},
      {[](int rank, auto& options) { options.start.size = rank == 1 ? 2 : 3; },
       "rank 0 was started as one of 3 ranks, rank 1 as one of 2"},
      {[](int rank, auto& options) { options.host = rank == 1 ? "b" : "a"; },
       "rank 0 and rank 1 are on different hosts (a and b): without MPI or UCX"}};
  for (const auto& [change, text] : rows) {
    for (const std::string& error : errors_of(3, change)) {
      CHECK_THAT(error, Catch::StartsWith("usage: " + text));
    }
  }
}

TEST_CASE("numbers and callbacks that make no sense are refused at once") {
  MemoryStore store;
  const std::vector<std::pair<void (*)(KeyValueStart&), std::string>> rows = {
      {[](auto& start) { start.rank = 2; }, "rank 2 of 2"},
      {[](auto& start) { start.rank = -1; }, "rank -1 of 2"},
      {[](auto& start) { start.size = 0; }, "rank 0 of 0"},
      {[](auto& start) { start.get = nullptr; }, "both put and get"},
      {[](auto& start) { start.put = nullptr; }, "both put and get"}};
  for (const auto& [change, text] : rows) {
    KeyValueOptions options = options_of(store, 0, 2);
    change(options.start);
    CHECK_THAT(text_of<UsageError>([&] { make(options); }), Contains(text));
  }
  CHECK(store.values().empty());

  KeyValueOptions alone = options_of(store, 0, 1);
  alone.start.put = nullptr;
  alone.start.get = nullptr;
  CHECK(make(alone)->topology().size == 1);
}

TEST_CASE("a store that holds something else is refused with the key") {
  MemoryStore store;
  for (const std::string value : {"", "hello", "ronde1:0", "ronde1:0g"}) {
    INFO("'" << value << "'");
    KeyValueOptions options = options_of(store, 0, 2);
    store.put("ronde/0/1", value);
    CHECK_THAT(text_of<UsageError>([&] { make(options); }),
               Contains("holds '" + value + "' at key 'ronde/0/1'"));
  }
  store.put("ronde/0/1", "ronde1:00");
  CHECK_THAT(text_of<UsageError>([&] { make(options_of(store, 0, 2)); }),
             Contains("what rank 1 has put") && Contains("another version"));
}

TEST_CASE("the addresses of an earlier start are not taken for those of this one") {
  MemoryStore store;
  std::latch done(2);
  run_ranks(2, [&](int rank) { meet(options_of(store, rank, 2), done); });
  KeyValueOptions again = options_of(store, 1, 2);
  again.init_timeout_s = kShort;
  const Death death = death_of([&] { make(again); });
  CHECK(death.rank == 0);
  CHECK_THAT(death.text, Contains("rank 1 could not connect to rank 0") &&
                             Contains("an earlier start under the prefix 'ronde'"));
}
