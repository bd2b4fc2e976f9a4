// SPDX-License-Identifier: Apache-2.0
// Worlds whose ranks are threads of one process.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <numeric>

#include "ronde/ronde.h"
#include "tests/support/fakes/memory_store.h"
#include "tests/support/processes/temporary_folder.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"
#include "tests/worlds/world_sums.h"

namespace ronde::test {
namespace {

/// A world of ranks of the job, in this order; `rank` is this one's number in the job.
World world_of(const std::string& name, MemoryStore& store, const std::vector<int>& ranks,
               int rank) {
  const auto place = std::ranges::find(ranks, rank) - ranks.begin();
  KeyValueStart start = store.start(static_cast<int>(place), static_cast<int>(ranks.size()));
  start.prefix = name;
  return World(name, {.key_value = start});
}

/// What each of `ranks` gives, its number plus one, summed.
double expected(const std::vector<int>& ranks) {
  return std::accumulate(ranks.begin(), ranks.end(), static_cast<double>(ranks.size()));
}

TEST_CASE("a model on half of the ranks, one on all, one reversed and one alone, all at once") {
  const std::vector<std::pair<std::string, std::vector<int>>> models = {
      {"half", {0, 1}}, {"all", {0, 1, 2, 3}}, {"reversed", {3, 2, 1, 0}}, {"alone", {2}}};
  MemoryStore store;
  run_ranks(4, [&](int rank) {
    std::vector<World> worlds;
    std::vector<double> sum_of;
    for (const auto& [name, members] : models) {
      if (std::ranges::count(members, rank) == 0) continue;
      const World& world = worlds.emplace_back(world_of(name, store, members, rank));
      sum_of.push_back(expected(members));
      check_equal(world.name(), name, "the name");
      check_equal(world.size(), static_cast<int>(members.size()), "the size");
      check_equal(members[static_cast<std::size_t>(world.rank())], rank, "the rank");
      check(world.set().world != 0, "it is not that of init()");
    }
    for (int round = 0; round < 60; ++round) {
      // In one world after the other, and waited for in another order: none waits for another.
      std::vector<std::unique_ptr<SumIn>> sums;
      for (const World& world : worlds) {
        sums.push_back(std::make_unique<SumIn>(world.set(), std::vector<double>(500, rank + 1)));
      }
      for (std::size_t i = sums.size(); i-- > 0;) {
        check_equal(sums[i]->wait(), std::vector<double>(500, sum_of[i]),
                    "the sum in " + worlds[i].name());
      }
    }
    // The same order on the ranks that two worlds share: here the oldest first.
    for (World& world : worlds) world.shutdown();
  });
}

TEST_CASE("operations of one world go on while those of another wait for a rank") {
  MemoryStore store;
  run_ranks(2, [&](int rank) {
    World slow = world_of("slow", store, {0, 1}, rank);
    World fast = world_of("fast", store, {0, 1}, rank);
    std::unique_ptr<SumIn> waiting;
    if (rank == 0) waiting = std::make_unique<SumIn>(slow.set(), std::vector<double>{1});
    for (int i = 0; i < 40; ++i) check_equal(sum_in(fast.set(), i), 2.0 * i, "the fast sum");
    if (rank == 0) check(!waiting->work.done(), "the slow one waits");
    barrier({.process_set = fast.set()});
    if (rank == 1) waiting = std::make_unique<SumIn>(slow.set(), std::vector<double>{2});
    check_equal(waiting->wait().front(), 3.0, "the slow sum");
    fast.shutdown();
    slow.shutdown();
  });
}

TEST_CASE("ranks of a world make another one, which outlives the first") {
  MemoryStore store;
  run_ranks(4, [&](int rank) {
    World parent = world_of("parent", store, {0, 1, 2, 3}, rank);
    const std::vector<int> chosen = {3, 0, 2};
    std::optional<World> child;
    if (rank != 1) child.emplace("child", parent.set(), chosen);
    // A set of the parent, whose second rank is that of the child which has rank 0 there.
    const ProcessSet odd = parent.add_process_set({1, 3});
    if (rank == 3) {
      const World alone("alone-of-odd", odd, {1});
      check_equal(alone.size(), 1, "the size of what one rank makes");
    }
    if (rank % 2 == 1) check_equal(sum_in(odd, rank), 4.0, "the sum of the set");
    parent.shutdown();
    if (!child) return;
    check_equal(chosen[static_cast<std::size_t>(child->rank())], rank, "the rank");
    World grandchild("grandchild", child->set(), {2, 1, 0});
    for (int i = 0; i < 20; ++i) {
      check_equal(sum_in(child->set(), rank), 5.0, "the sum of the child");
      check_equal(sum_in(grandchild.set(), i), 3.0 * i, "the sum of the grandchild");
    }
    check_equal(grandchild.rank(), 2 - child->rank(), "the rank in the grandchild");
    grandchild.shutdown();
    child->shutdown();
  });
}

TEST_CASE("worlds of ranks of another are made by two threads at once") {
  MemoryStore store;
  run_ranks(3, [&](int rank) {
    World parent = world_of("parent", store, {0, 1, 2}, rank);
    run_ranks(2, [&](int thread) {
      const std::string name = thread == 0 ? "first" : "second";
      for (int i = 0; i < 3; ++i) {
        World world(name + std::to_string(i), parent.set(), {2, 0, 1});
        check_equal(sum_in(world.set(), rank), 3.0, "the sum");
        world.shutdown();
      }
    });
    parent.shutdown();
  });
}

TEST_CASE("every call that takes a set takes a world") {
  MemoryStore store;
  run_ranks(2, [&](int rank) {
    World world = world_of("calls", store, {0, 1}, rank);
    const ProcessSet set = world.set();
    barrier({.process_set = set});
    check_equal(ranks_of(set), std::vector<int>{0, 1}, "ranks_of()");
    check_equal(rank_in(set).value(), rank, "rank_in()");
    check(&runtime_of(set) == &world.runtime(), "runtime_of()");
    const ProcessSet reversed = world.create_process_set({1, 0}, "reversed");
    check_equal(rank_in(reversed).value(), 1 - rank, "the rank in a set of the world");
    check_equal(sum_in(reversed, 1), 2.0, "a sum in a set of the world");
    check_equal(runtime_of(reversed).process_sets(), std::vector<ProcessSet>{set, reversed},
                "process_sets() of the world");
    {
      Span span("a span of the world", set);
      mark_step(7, set);
    }
    check_equal(figures(set).steps, std::uint64_t{1}, "its steps");
    check(nlohmann::json::parse(stats(set)).contains("figures"), "stats() of the world");
    std::vector<float> value = {static_cast<float>(rank)}, second = {1};
    Request request = sum_request(value, "prepared");
    request.set = set;
    const PersistentOp operation = prepare(request);
    const Start start{.input = value.data(), .output = value.data()};
    for (int i = 0; i < 3; ++i) operation.start(start).wait();
    check_equal(value[0], 4.0F, "a prepared operation");
    std::vector<Request> group(2, request);
    group[1].name = "second";
    group[1].input = group[1].output = second.data();
    for (const Work& work : submit_group(group)) work.wait();
    check_equal(second[0], 2.0F, "a group");
    check(join({.process_set = set}) >= 0, "a join");
    remove_process_set(reversed);
    world.shutdown();
  });
}

TEST_CASE("a world can be made again under its name, and its sets stay apart") {
  run_ranks(2, [store = std::make_shared<std::array<MemoryStore, 5>>()](int rank) {
    std::optional<ProcessSet> former;
    for (MemoryStore& each : *store) {
      World world = world_of("again", each, {0, 1}, rank);
      check(!former || *former != world.set(), "the number is a new one");
      if (former) {
        check_contains(text_of<NotInitializedError>([&] { sum_in(*former, 1); }),
                       "has been shut down");
      }
      check_equal(sum_in(world.set(), 2), 4.0, "the sum");
      former = world.set();
      world.shutdown();
      world.shutdown();
    }
  });
}

TEST_CASE("no limit that nobody has set ends operations before their own time-outs") {
  const auto limit_of = [](std::chrono::nanoseconds longest) {
    MemoryStore store;
    const World world("patient", {.key_value = store.start(0, 1), .longest_timeout = longest});
    return world.runtime().config().stall_abort_s;
  };
  const double unset = Config().stall_abort_s;
  CHECK(limit_of(std::chrono::seconds(0)) == unset);
  CHECK(limit_of(std::chrono::seconds(5)) == unset);
  CHECK(limit_of(std::chrono::minutes(30)) == 1860.0);
  setenv("RONDE_STALL_ABORT_S", "40", 1);
  CHECK(limit_of(std::chrono::minutes(30)) == 40.0);
  unsetenv("RONDE_STALL_ABORT_S");
}

TEST_CASE("the death of a world leaves the others alone") {
  MemoryStore store;
  run_ranks(2, [&](int rank) {
    World doomed = world_of("doomed", store, {0, 1}, rank);
    World lives = world_of("lives", store, {0, 1}, rank);
    if (rank == 1) abort("a planted end", doomed.set());
    const Death death = death_of([&] {
      for (;;) sum_in(doomed.set(), 1);
    });
    check_equal(death.rank, 1, "the rank that failed");
    check_contains(death.text, "a planted end");
    check_contains(death.text, "The world 'doomed' is dead: make another one");
    for (int i = 0; i < 20; ++i) check_equal(sum_in(lives.set(), 1), 2.0, "the sum that goes on");
    lives.shutdown();
  });
}

TEST_CASE("what Ronde writes bears the name of its world") {
  const TemporaryFolder folder;
  const std::map<std::string, std::string> variables = {{"RONDE_TIMELINE", folder / "trace.json"},
                                                        {"RONDE_PROFILE", folder / "profile.json"},
                                                        {"RONDE_METRICS", folder / "metrics.prom"},
                                                        {"RONDE_DUMP", folder / "dumps"},
                                                        {"RONDE_TOP", "1"},
                                                        {"XDG_RUNTIME_DIR", folder.path()}};
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  MemoryStore store;
  run_ranks(2, [&](int rank) {
    World actor = world_of("actor", store, {0, 1}, rank);
    World critic = world_of("critic", store, {1, 0}, rank);
    for (const World* world : {&actor, &critic}) {
      sum_in(world->set(), 1);
      dump(world->set());
      const std::string of_process = std::to_string(getpid()) + "." + std::to_string(world->rank());
      check(
          std::filesystem::exists(folder / ("ronde/" + of_process + "." + world->name() + ".sock")),
          "a socket for ronde top");
    }
    critic.shutdown();
    actor.shutdown();
  });
  for (const auto& [name, value] : variables) unsetenv(name.c_str());
  for (const std::string name : {"actor", "critic"}) {
    const auto parsed = [&](const std::string& file) {
      INFO(file);
      REQUIRE(std::filesystem::exists(folder / file));
      return nlohmann::json::parse(read_text(folder / file));
    };
    CHECK(parsed("profile." + name + ".json").at("world") == name);
    CHECK(read_text(folder / ("trace." + name + ".json")).find(name + " rank 1 on ") !=
          std::string::npos);
    CHECK(read_text(folder / ("metrics." + name + ".rank0.prom")).find("world=\"" + name + "\"") !=
          std::string::npos);
    CHECK(parsed("dumps/" + name + "/rank1.json").at("world") == name);
  }
}

}  // namespace
}  // namespace ronde::test
