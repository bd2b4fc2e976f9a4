// SPDX-License-Identifier: Apache-2.0
// Process sets of ranks as threads, each on the engine of its own.
#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>

#include "tests/support/ranks/goes_on.h"
#include "tests/support/ranks/sets_of_ranks.h"

using namespace ronde;
using namespace ronde::test;

TEST_CASE("every subset of four ranks reduces by itself, and many sets are made and removed") {
  on_all_placements(4, [](int rank, Runtime& runtime) {
    for (unsigned round = 0; round < 7 * 15; ++round) {
      const unsigned subset = round % 15 + 1;
      std::vector<int> ranks;
      for (int member = 0; member < 4; ++member) {
        if ((subset >> member & 1U) != 0) ranks.push_back(member);
      }
      const ProcessSet set = runtime.add_process_set(ranks);
      check(runtime.ranks_of(set) == ranks, "its ranks");
      if (runtime.rank_in(set)) {
        check(sum_in(runtime, set) == expected_sum(ranks), "the sum of the set");
        check(ranks[static_cast<std::size_t>(*runtime.rank_in(set))] == rank, "the rank in it");
      }
      check(sum_in(runtime, kGlobalSet) == expected_sum({0, 1, 2, 3}), "the sum of all");
      runtime.remove_process_set(set);
    }
    check(runtime.process_sets() == std::vector<ProcessSet>{kGlobalSet}, "all are removed");
    check(counter_of(runtime, "process_sets", "removed") == 7 * 15, "counted");
  });
}

TEST_CASE("members alone create a set while the others go on") {
  on_all_placements(4, [](int rank, Runtime& runtime) {
    if (rank % 2 == 1) {
      const ProcessSet set = runtime.create_process_set({3, 1});
      for (int step = 0; step < 5; ++step) {
        check(sum_in(runtime, set) == expected_sum({1, 3}), "the sum of the odd ranks");
      }
      runtime.remove_process_set(set);
    }
    check_goes_on(runtime);
    check(runtime.process_sets().size() == 1, "none is left, and none was told of");
  });
}

TEST_CASE("overlapping sets with every rank blocked in another one do not deadlock") {
  on_all_placements(3, [](int rank, Runtime& runtime) {
    const ProcessSet sets[] = {runtime.add_process_set({0, 1}), runtime.add_process_set({1, 2}),
                               runtime.add_process_set({2, 0})};
    const ProcessSet mine = sets[rank];
    const ProcessSet other = sets[(rank + 2) % 3];
    for (int step = 0; step < 10; ++step) {
      // Every rank waits in its own set first; its partner there waits in the next one.
      std::thread partner([&] { sum_in(runtime, other, "blocked"); });
      sum_in(runtime, mine, "blocked");
      partner.join();
      Pending second(runtime, other, "in turn");
      Pending first(runtime, mine, "in turn");
      first.result();
      second.result();
    }
  });
}

TEST_CASE("a barrier of a set holds its members only") {
  const std::vector<int> members = {3, 0, 1};
  std::barrier members_meet(3);
  std::atomic<int> entered{0};
  on_all_placements(4, [&](int rank, Runtime& runtime) {
    const ProcessSet set = runtime.add_process_set(members);
    const ProcessSet pair = runtime.add_process_set({1, 2});
    const auto enter = [&](ProcessSet where) {
      return runtime.submit(in_set(where, barrier_request()));
    };
    for (const int last : members) {
      const bool is_early = runtime.rank_in(set) && rank != last;
      Work work;
      const int before = entered.load();
      if (runtime.rank_in(set)) members_meet.arrive_and_wait();
      if (is_early) {
        entered.fetch_add(1);
        work = enter(set);
      }
      // The set waits for its last member; all ranks and the other set go on.
      enter(kGlobalSet).wait();
      if (runtime.rank_in(pair)) enter(pair).wait();
      check_goes_on(runtime);
      check(!is_early || !work.done(), "held until the last member has come");
      if (!runtime.rank_in(set)) continue;
      members_meet.arrive_and_wait();
      if (rank == last) {
        entered.fetch_add(1);
        work = enter(set);
      }
      work.wait();
      check(entered.load() == before + 3, "all members have come");
      members_meet.arrive_and_wait();
    }
  });
}

TEST_CASE("sets work beside a frozen schedule without thawing it") {
  std::barrier before_shutdown(3);
  run_group(3, [&](int rank, Runtime& runtime) {
    const ProcessSet pair = runtime.add_process_set({0, 2});
    for (int step = 0; step < 20; ++step) {
      check(sum_in(runtime, kGlobalSet) == 6.0F, "the sum of all");
      if (rank != 1) check(sum_in(runtime, pair) == 4.0F, "the sum of the pair");
    }
    const std::uint64_t freezes = counter_of(runtime, "schedule", "freezes");
    const std::uint64_t thaws = counter_of(runtime, "schedule", "thaws");
    before_shutdown.arrive_and_wait();
    check(freezes == 1 && thaws == 0, "frozen once, and kept");
  });
}

TEST_CASE("static sets are there after the start") {
  Config config = test_config();
  config.process_sets = "0,1;2";
  const auto body = [](int rank, Runtime& runtime) {
    check(runtime.process_sets() == std::vector<ProcessSet>{{0}, {1}, {2}}, "numbered as given");
    check(runtime.ranks_of({1}) == std::vector<int>{0, 1}, "the first one");
    if (rank < 2) check(sum_in(runtime, {1}) == 3.0F, "the sum of the first set");
    if (rank == 2) check(sum_in(runtime, {2}) == 3.0F, "the sum of a set of one");
  };
  run_group(3, body, config);
}

TEST_CASE("threads of one rank create sets at the same time") {
  run_group(2, [](int, Runtime& runtime) {
    run_ranks(4, [&](int thread) {
      const std::string tag = "thread " + std::to_string(thread);
      check(sum_in(runtime, runtime.create_process_set({0, 1}, tag)) == 3.0F, "each works");
    });
    check(runtime.process_sets().size() == 5, "all are known");
  });
}

TEST_CASE("messages within a set go by its own numbers, and their errors by the group's") {
  on_all_placements(4, [](int rank, Runtime& runtime) {
    const ProcessSet set = runtime.add_process_set({3, 0, 2});
    if (rank == 1 || rank == 2) return;  // ranks 3 and 0 are 0 and 1 in the set
    for (const std::size_t received : {2U, 1U}) {
      std::vector<float> values(rank == 3 ? 2 : received, static_cast<float>(rank));
      const Work work = runtime.submit(
          in_set(set, rank == 3 ? send_request(values, 1) : recv_request(values, kAnyRank)));
      if (received == 1) {
        check_contains(usage_error_of(work),
                       "the message from rank 3 to rank 0 (tag 0) differs between them");
        continue;
      }
      work.wait();
      check_equal(values[1], 3.0F, "the message");
      check_equal(work.source(), rank == 3 ? -1 : 0, "whose number in the set is told");
    }
  });
}
