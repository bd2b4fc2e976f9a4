// SPDX-License-Identifier: Apache-2.0
// Process sets that are refused, that cannot be made, and that end with a rank. Static ones that
// cannot be: runtime_start_test.cc.
#include <barrier>
#include <catch2/catch.hpp>
#include <latch>

#include "tests/support/fakes/faulty_backend.h"
#include "tests/support/ranks/goes_on.h"
#include "tests/support/ranks/sets_of_ranks.h"

using namespace ronde;
using namespace ronde::test;

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
    std::vector<float> values(1);
    Request broadcast = in_set(pair, sum_request(values, "b"));
    broadcast.kind = Collective::Broadcast;
    broadcast.root = 2;  // of the set, not of the group
    if (rank != 1) {
      check_contains(usage_error_of(runtime.submit(broadcast)),
                     "root 2 is out of range: there are ranks 0 to 1 in process set 1");
    }
    check_goes_on(runtime);
    runtime.remove_process_set(pair);
    check(counter_of(runtime, "process_sets", "removed") == 1, "also where it had no member");
    check_contains(text_of<UsageError>([&] { sum_in(runtime, pair); }), "it was removed");
    check_contains(text_of<UsageError>([&] { runtime.remove_process_set(pair); }),
                   "it was removed");
    check_contains(text_of<UsageError>([&] { runtime.remove_process_set(kGlobalSet); }),
                   "the process set of all ranks cannot be removed");
    check_goes_on(runtime);
  });
}

TEST_CASE("ranks that make different sets all get one error") {
  run_group(3, [](int rank, Runtime& runtime) {
    const auto refused = [&](const std::vector<int>& ranks, const std::string& tag = {}) {
      return text_of<UsageError>([&] { runtime.create_process_set(ranks, tag); });
    };
    const std::string text = text_of<UsageError>([&] {
      runtime.add_process_set(rank == 1 ? std::vector<int>{1} : std::vector<int>{0, 1});
    });
    check_contains(text, "ranks 0,2: ranks 0,1");
    check_contains(text, "rank 1: ranks 1");
    check(runtime.add_process_set({0, 2}).id == 1, "the next one is right");
    check_goes_on(runtime);
    if (rank < 2) {
      check_contains(refused({rank, 1 - rank}, "t"),
                     "rank 1: the process set of ranks 1,0 (tag 't')");
    } else {
      check_contains(refused({0, 1}), "rank 2 is not among the ranks 0,1");
      check_contains(refused({2, 2}), "rank 2 comes twice");
    }
    check_goes_on(runtime);
  });
}

TEST_CASE("a set that one rank cannot make is made by none, and the job goes on") {
  const bool exchanges = GENERATE(false, true);  // rank 1 then waits for rank 2
  const bool as_group_error = GENERATE(false, true);
  const inproc::Group group(3);
  run_ranks(3, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    BackendFactory& factory = options.backends.at("inproc");
    const auto faults = std::make_shared<Faults>();
    factory.create = [&, create = factory.create, made = 0](BackendContext& context) mutable {
      if (context.set == 0) return create(context);
      const bool fails = ++made == 1 && rank == 2;
      if (fails && as_group_error) throw GroupError(1, "no memory to share");
      if (fails) throw std::runtime_error("no memory to share");
      if (exchanges) context.exchange("hello");
      return std::unique_ptr<Backend>(std::make_unique<FaultyBackend>(create(context), faults));
    };
    Runtime runtime(std::move(options));
    const std::string text = text_of<UsageError>([&] { runtime.add_process_set({1, 2}); });
    check_contains(text, "process set 1 was not made");
    check_contains(text, "rank 2: no memory to share");
    check(runtime.process_sets().size() == 1, "it is not there");
    const bool was_made = rank == 1 && !exchanges;
    check(!was_made || (faults->closed() && !faults->aborted()), "what rank 1 made is closed");
    const ProcessSet set = runtime.add_process_set({1, 2});
    if (rank > 0) check(sum_in(runtime, set) == 5.0F, "the next one works");
    check_goes_on(runtime);
    runtime.shutdown();
  });
}

TEST_CASE("a set that no backend can serve is not made") {
  const inproc::Group group(2);
  run_ranks(2, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    options.backends.at("inproc").serves_sets = false;
    Runtime runtime(std::move(options));
    check_contains(text_of<UsageError>([&] {
                     runtime.add_process_set({0, 1});
                   }),
                   "no backend for cpu buffers can serve a process set of ranks on 1 host(s)");
    check_goes_on(runtime);
    runtime.shutdown();
  });
}

TEST_CASE("a callback of the engine can neither make a set nor remove one") {
  std::latch is_set(1);
  run_group(2, [&](int rank, Runtime& runtime) {
    const ProcessSet set = runtime.add_process_set({0, 1});
    if (rank == 1) is_set.wait();
    std::vector<float> values(1, 1.0F);
    const Work work = runtime.submit(sum_request(values, "x"));
    std::string added, created, removed;
    if (rank == 0) {
      // Rank 1 has not submitted: the engine will run this.
      work.on_done([&] {
        added = text_of<UsageError>([&] { runtime.add_process_set({0}); });
        created = text_of<UsageError>([&] { runtime.create_process_set({0}); });
        removed = text_of<UsageError>([&] { runtime.remove_process_set(set); });
      });
      is_set.count_down();
    }
    work.wait();
    check_goes_on(runtime);
    check(sum_in(runtime, set) == 3.0F, "the set is still there");
    check(sum_in(runtime, runtime.add_process_set({1, 0})) == 3.0F, "the ranks are still in step");
    if (rank == 1) return;
    check_contains(added, "rank 0: add_process_set(): a process set cannot be made or removed in");
    check_contains(created, "rank 0: create_process_set(): a process set cannot be made or");
    check_contains(removed, "rank 0: remove_process_set(): a process set cannot be made or");
  });
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

TEST_CASE("texts of an operation in flight in a set name the set") {
  run_group(2, [](int rank, Runtime& runtime) {
    const ProcessSet set = runtime.add_process_set({1, 0});
    std::vector<float> a(3, 1.0F), b(3, 1.0F);
    const Request request = in_set(set, sum_request(a, "x"));
    Request hasty = request;
    hasty.timeout = std::chrono::milliseconds(20);
    if (rank == 0) {
      const Work work = runtime.submit(hasty);
      check_contains(usage_error_of(work), "allreduce 'x' in process set 1 timed out on rank 0");
      check_equal(missing_ranks_of(work), std::vector{0}, "rank 1 by its number in the set");
    }
    runtime.submit(barrier_request()).wait();
    if (rank == 1) check_contains(usage_error_of(runtime.submit(hasty)), "timed out on rank 0");
    const auto submit = [&] {
      return runtime.submit_group({request, in_set(set, sum_request(b, ""))});
    };
    std::vector<Work> works;
    if (rank == 0) {
      works = submit();
      check_contains(text_of<UsageError>([&] { runtime.submit(request); }),
                     "allreduce 'x' in process set 1 is still in flight");
    }
    check_contains(text_of<UsageError>([&] { runtime.remove_process_set(set); }),
                   "rank 0: allreduce 'x', allreduce number 0 without a name in the group with 'x' "
                   "in flight");
    if (rank == 1) works = submit();
    for (const Work& work : works) work.wait();
    check(b[0] == 2.0F, "the operation goes on");
  });
}

TEST_CASE("a group that fails for what waits in a set names the set") {
  using Act = std::function<void(Runtime&, ProcessSet)>;
  const Act sum = [](Runtime& runtime, ProcessSet set) { sum_in(runtime, set, "x"); };
  const Act join = [](Runtime& runtime, ProcessSet set) { runtime.run(join_request(set)); };
  const Act create = [](Runtime& runtime, ProcessSet) { runtime.create_process_set({0, 1}); };
  struct Row {
    std::string manner, text;
    Act act;
  };
  const Row rows[] = {
      {"leaves", "still waited for allreduce 'x' in process set 1; every rank must", sum},
      {"leaves", "still waited for the other ranks of process set 1 to join", join},
      {"leaves", "still waited for creating the process set of ranks 0,1", create},
      {"stays away", "allreduce 'x' in process set 1 has waited", sum},
      {"dies", "(rank 0 was waiting for allreduce 'x' in process set 1)", sum}};
  for (const Row& row : rows) {
    inproc::Group group(2);
    Config config = test_config();
    if (row.manner == "stays away") {
      config.stall_warn_s = 0.0;
      config.stall_abort_s = 5.0;
    }
    std::atomic<Runtime*> waiting{nullptr};
    std::latch over(1);
    run_ranks(2, [&](int rank) {
      Runtime runtime(options_of(group, rank, config));
      const ProcessSet set = runtime.add_process_set({1, 0});
      if (rank == 0) {
        waiting = &runtime;
        const Death death = death_of([&] { row.act(runtime, set); });
        over.count_down();
        check(death.rank == 1, "who is missing is named");
        return check_contains(death.text, row.text);
      }
      if (row.manner == "leaves") {
        check(death_of([&] { runtime.shutdown(); }).rank == 1, "as everywhere");
      }
      if (row.manner == "dies") {
        while (waiting == nullptr) std::this_thread::yield();
        const auto announced = [&] {
          return counter_of(*waiting, "response_cache of set 1", "misses");
        };
        while (announced() == 0) std::this_thread::yield();
        group.kill(1);
      }
      over.wait();
    });
  }
}

TEST_CASE("a death ends the sets of those it concerns, and of all others, also while one is made") {
  const bool makes = GENERATE(false, true);
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
      while (!makes) sum_in(runtime, mine);
      runtime.add_process_set({0, 1});
    });
    check(death.rank == 3, "rank 3 is named");
    check(death_of([&] { runtime.add_process_set({0, 1}); }).rank == 3, "and again");
    check(death_of([&] { runtime.remove_process_set(mine); }).rank == 3, "and again");
  });
}
