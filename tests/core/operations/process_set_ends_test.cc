// SPDX-License-Identifier: Apache-2.0
// Sets that are being made when the group ends, and the backends made for them.
#include <algorithm>
#include <catch2/catch.hpp>
#include <latch>

#include "tests/support/ranks/faulty_group.h"

namespace {

using namespace ronde;
using namespace ronde::test;

/// Called before the backend of a set is made.
using BeforeCreate = std::function<void(const BackendContext&)>;

/// Options of a rank whose backends of sets have `faults`.
RuntimeOptions options_with(const inproc::Group& group, int rank, std::shared_ptr<Faults> faults,
                            BeforeCreate before, Config config = test_config()) {
  RuntimeOptions options = options_of(group, rank, std::move(config));
  BackendFactory& factory = options.backends.at("inproc");
  factory.create = [create = factory.create, faults = std::move(faults),
                    before = std::move(before)](BackendContext& context) {
    if (context.set == 0) return create(context);
    before(context);
    return std::unique_ptr<Backend>(std::make_unique<FaultyBackend>(create(context), faults));
  };
  return options;
}

bool has_part(const Runtime& runtime, const std::string& part) {
  return std::ranges::any_of(runtime.stats(),
                             [&](const StatsGroup& group) { return group.part == part; });
}

/// Blocks until shutdown() has been called on this rank: until then it can make sets of its own.
void await_shutdown_call(Runtime& runtime) {
  try {
    for (;;) runtime.remove_process_set(runtime.create_process_set({runtime.topology().rank}));
  } catch (const UsageError& error) {
    check_contains(error.what(), "shutdown() has been called");
  }
}

}  // namespace

TEST_CASE("the description of a set lives as long as its backends") {
  const inproc::Group group(2);
  const auto faults = std::make_shared<Faults>();
  const Topology* described = nullptr;
  std::latch thrown(1);
  bool is_intact = false;
  faults->when_destroyed([&] {
    thrown.wait();
    is_intact = described->host_of == std::vector<int>{0, 0};
  });
  std::vector<std::atomic<Runtime*>> runtimes(2);
  std::latch are_there(2);
  run_ranks(2, [&](int rank) {
    const auto before = [&, rank](const BackendContext& context) {
      if (rank == 0) {
        described = context.topology;
        return;
      }
      while (!has_part(*runtimes[0], "execution of set 1")) std::this_thread::yield();
      runtimes[1].load()->abort("over");
    };
    const auto own_faults = rank == 0 ? faults : std::make_shared<Faults>();
    Runtime runtime(options_with(group, rank, own_faults, before));
    runtimes[static_cast<std::size_t>(rank)] = &runtime;
    are_there.arrive_and_wait();
    const Death death = death_of([&] { runtime.create_process_set({0, 1}); });
    if (rank == 0) thrown.count_down();
    check(death.rank == 1, "rank 1 is named");
  });
  CHECK(is_intact);
  CHECK(faults->aborted());
}

TEST_CASE("a backend that is made when its group is dead is aborted") {
  // The error of a backend that cannot be made then hides nothing.
  const bool fails = GENERATE(false, true);
  const inproc::Group group(2);
  const auto faults = std::make_shared<Faults>();
  run_ranks(2, [&](int rank) {
    std::atomic<Runtime*> own{nullptr};
    const auto before = [&](const BackendContext&) {
      if (rank == 1) own.load()->abort("over");
      check(death_in_barrier(*own).rank == 1, "the group is dead");
      if (fails) throw UsageError("a part of the group is gone");
    };
    const auto own_faults = rank == 0 ? faults : std::make_shared<Faults>();
    Runtime runtime(options_with(group, rank, own_faults, before));
    own = &runtime;
    check(death_of([&] { runtime.create_process_set({0, 1}); }).rank == 1, "rank 1 is named");
  });
  CHECK(faults->aborted() == !fails);
  CHECK_FALSE(faults->closed());
}

TEST_CASE("ranks that cannot make a static set end the start in order") {
  FaultyGroup all(2);
  run_ranks(2, [&](int rank) {
    Config config = test_config();
    config.process_sets = "0;0,1";
    RuntimeOptions options = all.options(rank, config);
    BackendFactory& factory = options.backends.at("inproc");
    factory.create = [create = factory.create, rank](BackendContext& context) {
      if (rank == 1 && context.set == 2) throw std::runtime_error("no memory to share");
      return create(context);
    };
    check_contains(text_of<UsageError>([&] { Runtime runtime(std::move(options)); }),
                   "rank 1: no memory to share");
    const Faults& faults = *all.faults[static_cast<std::size_t>(rank)];
    check(faults.closed() && !faults.aborted(), "what was made is closed");
  });
}

TEST_CASE("a shutdown lets other threads end the making of a set") {
  const bool fails = GENERATE(false, true);
  const inproc::Group group(GENERATE(std::vector<int>{0, 0}, std::vector<int>{0, 1}));
  run_ranks(2, [&](int rank) {
    std::atomic<Runtime*> own{nullptr};
    std::latch is_making(1);
    std::atomic<bool> has_begun{false};
    const auto begun = [&] {
      if (!has_begun.exchange(true)) is_making.count_down();
    };
    const auto before = [&](const BackendContext& context) {
      if (context.ranks.size() != 2) return;
      begun();
      await_shutdown_call(*own.load());
      if (fails && rank == 1) throw std::runtime_error("no memory to share");
    };
    Runtime runtime(options_with(group, rank, std::make_shared<Faults>(), before));
    own = &runtime;
    ThreadErrors errors;
    std::thread maker([&] {
      errors.catch_from([&] {
        const auto make = [&] { runtime.add_process_set({1, 0}); };
        if (fails) check_contains(text_of<UsageError>(make), "rank 1: no memory to share");
        if (!fails) make();
      });
      begun();  // or failed before
    });
    is_making.wait();
    runtime.shutdown();
    maker.join();
    errors.rethrow();
    const bool is_there = std::ranges::any_of(runtime.process_sets(), [&](ProcessSet set) {
      return runtime.ranks_of(set) == std::vector<int>{1, 0};
    });
    check(is_there != fails, "it is there, or not");
  });
}

TEST_CASE("a set that is not made in the time of a shutdown fails it, naming the late rank") {
  Config config = test_config();
  config.shutdown_timeout_s = 5.0;  // in which both are to call shutdown()
  const inproc::Group group(2);
  std::latch is_making(2), over(3);
  run_ranks(2, [&](int rank) {
    const auto before = [&, rank](const BackendContext&) {
      is_making.count_down();
      if (rank == 1) over.wait();
    };
    Runtime runtime(options_with(group, rank, std::make_shared<Faults>(), before, config));
    Death of_maker;
    std::thread maker([&] { of_maker = death_of([&] { runtime.add_process_set({0, 1}); }); });
    is_making.wait();
    const Death death = death_of([&] { runtime.shutdown(); });
    over.count_down(rank == 0 ? 2 : 1);
    maker.join();
    check(death.rank == 1 && of_maker.rank == 1, "rank 1 is named");
    check_contains(death.text, "rank 1 did not end making process set 1 within the limit");
  });
}

TEST_CASE("threads that make and remove sets while others shut down get an error each") {
  for (int round = 0; round < 10; ++round) {
    const inproc::Group group(2);
    run_ranks(2, [&](int rank) {
      Runtime runtime(options_of(group, rank));
      std::atomic<int> made{0};
      std::thread maker([&] {
        try {
          for (;;) {
            runtime.remove_process_set(runtime.add_process_set({0, 1}));
            ++made;
          }
        } catch (const Error&) {
          made = 1000;
        }
      });
      while (made < round + rank) std::this_thread::yield();
      try {
        runtime.shutdown();
      } catch (const GroupError& error) {
        check_contains(error.what(), "called shutdown() while");
      }
      maker.join();
    });
  }
}
