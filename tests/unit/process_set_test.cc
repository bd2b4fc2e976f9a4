// SPDX-License-Identifier: Apache-2.0
// Process sets of ranks as threads, each on the engine of its own.
#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <latch>
#include <numeric>

#include "tests/support/ranks.h"
#include "tests/support/requests.h"
#include "tests/unit/goes_on.h"

namespace {

using namespace ronde;
using namespace ronde::test;

/// The sum over the ranks of `set`, of the number of each in the group plus one.
float sum_in(Runtime& runtime, ProcessSet set, const std::string& name = "s") {
  std::vector<float> values(3, static_cast<float>(runtime.topology().rank + 1));
  Request request = sum_request(values, name);
  request.set = set;
  runtime.submit(request).wait();
  check(values[0] == values[2], "all elements alike");
  return values[0];
}

float expected_sum(const std::vector<int>& ranks) {
  return static_cast<float>(std::accumulate(ranks.begin(), ranks.end(), 0)) +
         static_cast<float>(ranks.size());
}

/// A sum that is already submitted; the buffer lives in it.
struct Pending {
  Pending(Runtime& runtime, ProcessSet set, const std::string& name)
      : values(3, static_cast<float>(runtime.topology().rank + 1)) {
    Request request = sum_request(values, name);
    request.set = set;
    work = runtime.submit(request);
  }
  float result() {
    work.wait();
    return values[0];
  }

  std::vector<float> values;
  Work work;
};

/// Groups of so many ranks, on one host and as if on several.
void on_all_placements(int size, const std::function<void(int, Runtime&)>& body) {
  std::vector<std::vector<int>> placements = {std::vector<int>(static_cast<std::size_t>(size), 0)};
  std::vector<int> pairs, apart;
  for (int rank = 0; rank < size; ++rank) {
    pairs.push_back(rank / 2);
    apart.push_back(rank % 2);
  }
  placements.push_back(pairs);
  placements.push_back(apart);
  for (const std::vector<int>& host_of : placements) {
    const inproc::Group group(host_of);
    run_ranks(size, [&](int rank) {
      Runtime runtime(options_of(group, rank));
      body(rank, runtime);
      runtime.shutdown();
    });
  }
}

}  // namespace

TEST_CASE("every subset of four ranks reduces by itself") {
  on_all_placements(4, [](int rank, Runtime& runtime) {
    for (unsigned subset = 1; subset < 16; ++subset) {
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
  });
}

TEST_CASE("ranks of a set are numbered in its order") {
  on_all_placements(3, [](int rank, Runtime& runtime) {
    const std::vector<int> ranks = {2, 0, 1};
    const ProcessSet set = runtime.add_process_set(ranks);
    const int within = *runtime.rank_in(set);
    const std::int32_t mine = 10 * rank;
    std::vector<std::int32_t> all(3);
    Request gather;
    gather.kind = Collective::Allgather;
    gather.name = "g";
    gather.dtype = DataType::I32;
    gather.shape = {1};
    gather.input = &mine;
    gather.output = all.data();
    gather.set = set;
    runtime.submit(gather).wait();
    check(all == std::vector<std::int32_t>{20, 0, 10}, "gathered in the order of the set");
    std::int32_t value = within == 1 ? 7 : 0;
    Request broadcast = gather;
    broadcast.kind = Collective::Broadcast;
    broadcast.name = "b";
    broadcast.root = 1;  // rank 0 of the group
    broadcast.input = broadcast.output = &value;
    runtime.submit(broadcast).wait();
    check(value == 7, "from the root within the set");
    broadcast.root = 3;
    check_contains(usage_error_of(runtime.submit(broadcast)),
                   "root 3 is out of range: there are ranks 0 to 2 in process set 1");
    check_goes_on(runtime);
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

TEST_CASE("one name and no name are matched in each set by themselves") {
  run_group(3, [](int rank, Runtime& runtime) {
    const ProcessSet low = runtime.add_process_set({0, 1});
    const ProcessSet high = runtime.add_process_set({1, 2});
    for (int step = 0; step < 3; ++step) {
      for (const std::string name : {"x", ""}) {
        Pending all(runtime, kGlobalSet, name);
        std::vector<std::unique_ptr<Pending>> own;
        if (rank < 2) own.push_back(std::make_unique<Pending>(runtime, low, name));
        if (rank > 0) own.push_back(std::make_unique<Pending>(runtime, high, name));
        check(all.result() == 6.0F, "the sum of all");
        if (rank < 2) check(own.front()->result() == 3.0F, "the sum of the low ranks");
        if (rank > 0) check(own.back()->result() == 5.0F, "the sum of the high ranks");
      }
    }
    if (rank == 1) check(counter_of(runtime, "response_cache of set 1", "hits") == 4, "by slot");
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

TEST_CASE("an operation that waits in one set holds up no other") {
  on_all_placements(3, [](int rank, Runtime& runtime) {
    const ProcessSet pair = runtime.add_process_set({0, 1});
    std::unique_ptr<Pending> early;
    if (rank == 0) early = std::make_unique<Pending>(runtime, pair, "late on rank 1");
    check_goes_on(runtime);
    if (rank == 1) early = std::make_unique<Pending>(runtime, pair, "late on rank 1");
    if (early) check(early->result() == 3.0F, "the sum of the pair");
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
  const inproc::Group group(3);
  run_ranks(3, [&](int rank) {
    Runtime runtime(options_of(group, rank, config));
    check(runtime.process_sets() == std::vector<ProcessSet>{{0}, {1}, {2}}, "numbered as given");
    check(runtime.ranks_of({1}) == std::vector<int>{0, 1}, "the first one");
    if (rank < 2) check(sum_in(runtime, {1}) == 3.0F, "the sum of the first set");
    if (rank == 2) check(sum_in(runtime, {2}) == 3.0F, "the sum of a set of one");
    runtime.shutdown();
  });
}

TEST_CASE("static sets that cannot be end the start on every rank") {
  struct Row {
    std::string first, other, text;
  };
  const Row rows[] = {{"0,9", "0,9", "rank 9 of the process set of ranks 0,9 does not exist"},
                      {"0,0", "0,0", "rank 0 comes twice"},
                      {"0;1", "0", "RONDE_PROCESS_SETS"}};
  for (const Row& row : rows) {
    const inproc::Group group(2);
    run_ranks(2, [&](int rank) {
      Config config = test_config();
      config.process_sets = rank == 0 ? row.first : row.other;
      check_contains(text_of<UsageError>([&] { Runtime runtime(options_of(group, rank, config)); }),
                     row.text);
    });
  }
}

TEST_CASE("operations of a set without this rank, or of none, are refused at once") {
  run_group(3, [](int rank, Runtime& runtime) {
    const ProcessSet pair = runtime.add_process_set({0, 2});
    if (rank == 1) {
      check_contains(text_of<UsageError>([&] { sum_in(runtime, pair, "x"); }),
                     "allreduce 'x': rank 1 is not in process set 1, which has the ranks 0,2");
    }
    check_contains(text_of<UsageError>([&] { sum_in(runtime, {9}); }),
                   "process set 9 does not exist");
    check_contains(text_of<UsageError>([&] { runtime.ranks_of({9}); }), "does not exist");
    check_goes_on(runtime);
    runtime.remove_process_set(pair);
    check_contains(text_of<UsageError>([&] { sum_in(runtime, pair); }), "it was removed");
    check_contains(text_of<UsageError>([&] { runtime.remove_process_set(pair); }),
                   "it was removed");
    check_contains(text_of<UsageError>([&] { runtime.remove_process_set(kGlobalSet); }),
                   "the process set of all ranks cannot be removed");
    check_goes_on(runtime);
  });
}

TEST_CASE("ranks that add different sets all get one error") {
  run_group(3, [](int rank, Runtime& runtime) {
    const std::string text = text_of<UsageError>([&] {
      runtime.add_process_set(rank == 1 ? std::vector<int>{1} : std::vector<int>{0, 1});
    });
    check_contains(text, "ranks 0,2: ranks 0,1");
    check_contains(text, "rank 1: ranks 1");
    check(runtime.add_process_set({0, 2}).id == 1, "the next one is right");
    check_goes_on(runtime);
  });
}

TEST_CASE("ranks that create different sets all get one error") {
  run_group(3, [](int rank, Runtime& runtime) {
    if (rank < 2) {
      const std::vector<int> ranks = rank == 0 ? std::vector<int>{0, 1} : std::vector<int>{1, 0};
      check_contains(text_of<UsageError>([&] { runtime.create_process_set(ranks, "t"); }),
                     "rank 1: the process set of ranks 1,0 (tag 't')");
    } else {
      check_contains(text_of<UsageError>([&] {
                       runtime.create_process_set({0, 1});
                     }),
                     "rank 2 is not among the ranks 0,1");
      check_contains(text_of<UsageError>([&] {
                       runtime.create_process_set({2, 2});
                     }),
                     "rank 2 comes twice");
    }
    check_goes_on(runtime);
  });
}

TEST_CASE("a set that one rank cannot make is made by none, and the job goes on") {
  for (const bool as_group_error : {false, true}) {
    const inproc::Group group(3);
    run_ranks(3, [&](int rank) {
      RuntimeOptions options = options_of(group, rank);
      BackendFactory factory = options.backends.at("inproc");
      factory.create = [create = factory.create, rank, as_group_error,
                        made = 0](BackendContext& context) mutable {
        const bool fails = context.set != 0 && ++made == 1 && rank == 2;
        if (fails && as_group_error) throw GroupError(1, "no memory to share");
        if (fails) throw std::runtime_error("no memory to share");
        if (context.set != 0) context.exchange("hello");
        return create(context);
      };
      options.backends["inproc"] = factory;
      Runtime runtime(std::move(options));
      const std::string text = text_of<UsageError>([&] { runtime.add_process_set({1, 2}); });
      check_contains(text, "process set 1 was not made");
      check_contains(text, "rank 2: no memory to share");
      check(runtime.process_sets().size() == 1, "it is not there");
      const ProcessSet set = runtime.add_process_set({1, 2});
      if (rank > 0) check(sum_in(runtime, set) == 5.0F, "the next one works");
      check_goes_on(runtime);
      runtime.shutdown();
    });
  }
}

TEST_CASE("one set is not removed by two threads at once") {
  run_group(2, [](int rank, Runtime& runtime) {
    const ProcessSet set = runtime.add_process_set({0, 1});
    std::atomic<int> removed{0};
    const auto remove = [&] {
      try {
        runtime.remove_process_set(set);
        ++removed;
      } catch (const UsageError&) {
        // The other thread does it, or has done it.
      }
    };
    std::thread other([&] {
      if (rank == 0) remove();
    });
    remove();
    other.join();
    check(removed == 1, "once");
    check_goes_on(runtime);
  });
}

TEST_CASE("a set with work in flight is not removed, and stays") {
  on_all_placements(3, [](int rank, Runtime& runtime) {
    const ProcessSet set = runtime.add_process_set({0, 1, 2});
    std::unique_ptr<Pending> pending;
    if (rank == 2) pending = std::make_unique<Pending>(runtime, set, "x");
    const std::string text = text_of<UsageError>([&] { runtime.remove_process_set(set); });
    check_contains(text, "process set 1 cannot be removed while it is in use");
    check_contains(text, "rank 2: allreduce 'x' in flight");
    if (rank != 2) pending = std::make_unique<Pending>(runtime, set, "x");
    check(pending->result() == 6.0F, "the operation goes on");
    runtime.remove_process_set(set);
    check_goes_on(runtime);
  });
}

TEST_CASE("many sets come and go") {
  run_group(3, [](int rank, Runtime& runtime) {
    for (int round = 0; round < 100; ++round) {
      const std::vector<int> ranks = {round % 3, (round + 1) % 3};
      const ProcessSet set = runtime.add_process_set(ranks);
      if (runtime.rank_in(set)) check(sum_in(runtime, set) == expected_sum(ranks), "its sum");
      runtime.remove_process_set(set);
    }
    check(counter_of(runtime, "process_sets", "removed") == 100, "counted");
    static_cast<void>(rank);
  });
}

TEST_CASE("threads of one rank create sets at the same time") {
  run_group(2, [](int, Runtime& runtime) {
    std::vector<std::thread> threads;
    std::vector<float> sums(4);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      threads.emplace_back([&, i] {
        const ProcessSet set = runtime.create_process_set({0, 1}, "thread " + std::to_string(i));
        sums[i] = sum_in(runtime, set);
      });
    }
    for (std::thread& thread : threads) thread.join();
    check(sums == std::vector<float>(4, 3.0F), "each works");
    check(runtime.process_sets().size() == 5, "all are known");
  });
}

TEST_CASE("a mismatch within a set names the ranks of the group and spares the others") {
  run_group(4, [](int rank, Runtime& runtime) {
    const ProcessSet set = runtime.add_process_set({3, 1});
    if (runtime.rank_in(set)) {
      std::vector<float> values(rank == 3 ? 2 : 4);
      Request request = sum_request(values, "x");
      request.set = set;
      const std::string text = usage_error_of(runtime.submit(request));
      check_contains(text, "rank 1: allreduce f32 [4] sum on cpu in process set 1");
      check_contains(text, "rank 3: allreduce f32 [2] sum on cpu in process set 1");
      check(sum_in(runtime, set) == expected_sum({1, 3}), "the set works on");
    }
    check_goes_on(runtime);
  });
}

TEST_CASE("a death ends the sets of those it concerns, and of all others") {
  inproc::Group group(4);
  std::barrier before_death(4);
  run_ranks(4, [&](int rank) {
    Runtime runtime(options_of(group, rank));
    const ProcessSet low = runtime.add_process_set({0, 1});
    const ProcessSet high = runtime.add_process_set({2, 3});
    const ProcessSet mine = rank < 2 ? low : high;
    check(sum_in(runtime, mine) > 0.0F, "the set works");
    before_death.arrive_and_wait();
    if (rank == 3) return group.kill(3);
    const Death death = death_of([&] {
      for (;;) sum_in(runtime, mine);
    });
    check(death.rank == 3, "rank 3 is named");
    check(death_of([&] { runtime.add_process_set({0, 1}); }).rank == 3, "and again");
    check(death_of([&] { runtime.remove_process_set(mine); }).rank == 3, "and again");
  });
}

TEST_CASE("a death while a set is made ends the wait for it") {
  inproc::Group group(3);
  std::barrier before_death(3);
  run_ranks(3, [&](int rank) {
    Runtime runtime(options_of(group, rank));
    check_goes_on(runtime);
    before_death.arrive_and_wait();
    if (rank == 2) return group.kill(2);
    check(death_of([&] { runtime.add_process_set({0, 1}); }).rank == 2, "rank 2 is named");
  });
}

TEST_CASE("a set that a rank does not come to is reported, and ends the group at the limit") {
  Config config = test_config();
  config.stall_warn_s = 0.05;
  config.stall_abort_s = 0.2;
  const inproc::Group group(3);
  std::latch seen(2);
  run_ranks(3, [&](int rank) {
    Runtime runtime(options_of(group, rank, config));
    if (rank == 1) return seen.wait();
    const Death death = death_of([&] { runtime.create_process_set({0, 1, 2}); });
    seen.count_down();
    check(death.rank == 1, "who is missing is named");
    check_contains(death.text, "creating the process set of ranks 0,1,2");
  });
}

TEST_CASE("a shutdown while others wait for a set is a departure") {
  const inproc::Group group(2);
  run_ranks(2, [&](int rank) {
    Runtime runtime(options_of(group, rank));
    if (rank == 0) {
      const Death death = death_of([&] { runtime.create_process_set({0, 1}); });
      check(death.rank == 1, "who left is named");
      check_contains(death.text, "still waited for creating the process set of ranks 0,1");
    } else {
      check(death_of([&] { runtime.shutdown(); }).rank == 1, "as everywhere");
    }
  });
}

TEST_CASE("a shutdown waits for what sets have in flight") {
  on_all_placements(4, [](int rank, Runtime& runtime) {
    const ProcessSet set = runtime.add_process_set({1, 3});
    if (!runtime.rank_in(set)) return;
    const Pending pending(runtime, set, "last");
    runtime.shutdown();
    check(pending.work.done() && pending.values[0] == 6.0F, "it was finished");
    static_cast<void>(rank);
  });
}

TEST_CASE("messages within a set go by its own numbers, and their errors by the group's") {
  on_all_placements(4, [](int rank, Runtime& runtime) {
    const ProcessSet set = runtime.add_process_set({3, 0, 2});
    const auto within = runtime.rank_in(set);
    if (!within) return;
    Request message;
    message.set = set;
    message.dtype = DataType::I32;
    message.shape = {1};
    // Around the ring 3 -> 0 -> 2 -> 3.
    std::int32_t out = 100 + rank;
    std::int32_t in = 0;
    message.kind = Collective::Send;
    message.peer = (*within + 1) % 3;
    message.input = &out;
    const Work sent = runtime.submit(message);
    message.kind = Collective::Recv;
    message.peer = kAnyRank;
    message.output = &in;
    const Work received = runtime.submit(message);
    sent.wait();
    received.wait();
    const std::vector<int> before = {2, 3, 0};
    check(in == 100 + before[static_cast<std::size_t>(*within)], "from the one before");
    check(received.source() == (*within + 2) % 3, "whose number in the set is told");

    if (rank == 2) return;  // ranks 3 and 0 are 0 and 1 in the set
    message.kind = rank == 3 ? Collective::Send : Collective::Recv;
    message.peer = 1 - *within;
    message.shape = {rank == 3 ? 2 : 1};
    std::vector<std::int32_t> two(2);
    message.input = message.output = two.data();
    check_contains(usage_error_of(runtime.submit(message)),
                   "the message from rank 3 to rank 0 (tag 0) differs between them");
  });
}
