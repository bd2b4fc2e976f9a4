// SPDX-License-Identifier: Apache-2.0
// Process sets of ranks as threads, each on the engine of its own.
#include <barrier>
#include <catch2/catch.hpp>

#include "tests/support/ranks/goes_on.h"
#include "tests/support/ranks/sets_of_ranks.h"

using namespace ronde;
using namespace ronde::test;

TEST_CASE("a barrier of a set holds its members only") {
  const std::vector<int> members = {3, 0, 1};
  std::barrier members_meet(3);
  on_all_placements(4, [&](int rank, Runtime& runtime) {
    const ProcessSet set = runtime.add_process_set(members);
    const auto enter = [&](ProcessSet where) {
      return runtime.submit(in_set(where, barrier_request()));
    };
    for (const int last : members) {
      const bool is_early = runtime.rank_in(set) && rank != last;
      Work work;
      if (is_early) work = enter(set);
      // The set waits for its last member, and all ranks go on.
      enter(kGlobalSet).wait();
      check_goes_on(runtime);
      check(!is_early || !work.done(), "held until the last member has come");
      if (!runtime.rank_in(set)) continue;
      members_meet.arrive_and_wait();
      if (rank == last) work = enter(set);
      work.wait();
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
