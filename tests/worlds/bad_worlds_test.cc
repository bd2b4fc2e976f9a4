// SPDX-License-Identifier: Apache-2.0
// Mistakes with worlds, and what says so.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <future>

#include "ronde/ronde.h"
#include "tests/support/fakes/memory_store.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"
#include "tests/worlds/world_sums.h"

namespace ronde::test {
namespace {

using Catch::Contains;
using namespace std::chrono_literals;

World alone(const std::string& name) {
  return World(name, {.key_value = KeyValueStart{}});
}

TEST_CASE("a world needs a name that files can bear") {
  for (const std::string name : {"", ".", "..", "a/b", "two words", "a%n", "line\n", "rank0"}) {
    INFO(name);
    CHECK_THAT(text_of<UsageError>([&] { alone(name); }),
               Contains("cannot name a world, as files bear it"));
  }
  CHECK_THROWS_AS(alone(std::string(41, 'a')), UsageError);
  alone(std::string(40, 'a')).shutdown();
  alone("Az09._-").shutdown();
}

TEST_CASE("a world has to be told in one way who its ranks are") {
  CHECK_THAT(text_of<UsageError>([] { World("w", InitOptions{}); }),
             Contains("ronde::World 'w' was not told who its ranks are"));
  CHECK_THAT(
      text_of<UsageError>([] { World("w", {.mpi_ranks = {0}, .key_value = KeyValueStart{}}); }),
      Contains("more than one of"));
}

TEST_CASE("ranks of a world that cannot make another one are refused") {
  World one = alone("one");
  const auto refusal = [&](const std::vector<int>& ranks) {
    return text_of<UsageError>([&] { World("w", one.set(), ranks); });
  };
  CHECK_THAT(refusal({}),
             Contains("ronde::World 'w': its ranks have to be different ones of 0 to 0"));
  CHECK_THAT(refusal({0, 0}), Contains("different ones of 0 to 0, not 0,0"));
  CHECK_THAT(refusal({1}), Contains("different ones of 0 to 0, not 1"));
  CHECK_THAT(refusal({-1}), Contains("different ones"));
  one.shutdown();
  CHECK_THAT(text_of<NotInitializedError>([&] { World("w", one.set(), {0}); }),
             Contains("has been shut down"));
  CHECK_THROWS_AS(World("w", kGlobalSet, {0}), NotInitializedError);
}

TEST_CASE("ranks that do not come to make a world are named, and it can be made later") {
  // Who does not come, who is named, and how much later than the others the first one comes.
  const auto [absent, named, lateness] =
      GENERATE(table<std::vector<int>, int, std::chrono::seconds>(
          {{{0}, 0, 0s}, {{1, 2}, 1, 0s}, {{3}, 3, 0s}, {{2}, 2, 3s}}));
  MemoryStore store;
  std::array<std::optional<World>, 4> parents;
  run_ranks(4, [&](int rank) {
    parents.at(static_cast<std::size_t>(rank))
        .emplace("parent", InitOptions{.key_value = store.start(rank, 4)});
  });
  setenv("RONDE_INIT_TIMEOUT_S", "2", 1);
  const std::vector<int> everybody = {0, 1, 2, 3};
  run_ranks(4, [&](int rank) {
    World& parent = *parents.at(static_cast<std::size_t>(rank));
    barrier({.process_set = parent.set()});
    if (rank == 0) std::this_thread::sleep_for(lateness);
    if (std::ranges::find(absent, rank) == absent.end()) {
      const Death death = death_of([&] { World("child", parent.set(), everybody); });
      check_equal(death.rank, named, "the rank that did not come");
      check_contains(death.text, "world 'child' was not made: rank " + std::to_string(named) +
                                     " of the world that its ranks are in did not come");
    }
  });
  unsetenv("RONDE_INIT_TIMEOUT_S");
  run_ranks(4, [&](int rank) {
    World& parent = *parents.at(static_cast<std::size_t>(rank));
    World child("child", parent.set(), everybody);
    check_equal(sum_in(child.set(), 1), 4.0, "the sum of the child");
    child.shutdown();
    check_equal(sum_in(parent.set(), 1), 4.0, "the sum of the parent");
    parent.shutdown();
  });
}

TEST_CASE("a process is in one world of a name at a time") {
  World model = alone("model");
  CHECK_THAT(text_of<UsageError>([] { alone("model"); }),
             Contains("this process is in a world 'model' already"));
  model.shutdown();
  alone("model").shutdown();
}

TEST_CASE("ranks that give a world different names are refused, all of them") {
  MemoryStore store;
  run_ranks(2, [&](int rank) {
    const std::string text = text_of<UsageError>(
        [&] { World(rank == 0 ? "mine" : "yours", {.key_value = store.start(rank, 2)}); });
    check_contains(text, "the world's name: rank 0: mine, rank 1: yours");
  });
}

TEST_CASE("a set of another world is refused") {
  World first = alone("first");
  World second = alone("second");
  const ProcessSet of_second = second.add_process_set({0});
  std::vector<float> value = {1};
  Request request = sum_request(value, "");
  request.set = of_second;
  CHECK_THAT(text_of<UsageError>([&] { first.runtime().submit(request); }),
             Contains("is one of another world"));
  request.set = {of_second.id, first.set().world};
  CHECK_THAT(text_of<UsageError>([&] { submit(request); }), Contains("does not exist here"));
  CHECK_THAT(text_of<UsageError>([&] { remove_process_set(second.set()); }),
             Contains("the process set of all ranks cannot be removed"));
  CHECK_THROWS_AS(first.runtime().remove_process_set(of_second), UsageError);
  std::vector<Request> mixed(2, request);
  mixed[0].set = first.set();
  mixed[1].set = second.set();
  CHECK_THROWS_AS(submit_group(mixed), UsageError);
  request.set = {0, 12345};
  CHECK_THROWS_AS(submit(request), NotInitializedError);
  // Where none is given it is that of init(), which there is not.
  request.set = kGlobalSet;
  CHECK_THAT(text_of<NotInitializedError>([&] { submit(request); }),
             Contains("was called before ronde::init()"));
  request.set = first.set();
  submit(request).wait();
  second.shutdown();
  first.shutdown();
}

TEST_CASE("a world that was shut down, or moved from, says so") {
  World world = alone("world");
  const World moved = std::move(world);
  CHECK_THROWS_AS(sum_in(world.set(), 1), NotInitializedError);
  CHECK_THAT(text_of<UsageError>([&] { world.rank(); }), Contains("had been moved from"));
  CHECK(moved.rank() == 0);
  World back = alone("back");
  back.shutdown();
  CHECK_THAT(text_of<NotInitializedError>([&] { back.rank(); }),
             Contains("was called for world 'back' after its shutdown()"));
  CHECK_THROWS_AS(back.runtime(), NotInitializedError);
  CHECK(back.name() == "back");
}

TEST_CASE("a world cannot be made, nor shut down, in a callback") {
  World world = alone("world");
  // The callback of what is done at once runs on this thread, which may do both.
  std::string of_making, of_end;
  bool was_called_back = false;
  for (int tries = 0; tries < 1000 && !was_called_back; ++tries) {
    const auto called = std::make_shared<std::promise<bool>>();
    const auto here = std::this_thread::get_id();
    barrier_async({.process_set = world.set()}).on_done([&, called, here] {
      const bool is_other = std::this_thread::get_id() != here;
      if (is_other) {
        of_making = text_of<UsageError>([&] { World("child", world.set(), {0}); });
        of_end = text_of<UsageError>([&] { world.shutdown(); });
      }
      called->set_value(is_other);
    });
    was_called_back = called->get_future().get();
  }
  REQUIRE(was_called_back);
  CHECK_THAT(of_making, Contains("a ronde::World was made in a callback of an operation"));
  CHECK_THAT(of_end, Contains("callback"));
  world.shutdown();
}

TEST_CASE("settings that are for init() alone leave a world as it is") {
  setenv("RONDE_PROCESS_SETS", "0,1", 1);
  World world = alone("world");
  CHECK(world.runtime().process_sets() == std::vector<ProcessSet>{world.set()});
  world.shutdown();
  setenv("RONDE_CPU_BACKEND", "mpi", 1);
  World without_mpi = alone("without_mpi");
  CHECK(without_mpi.runtime().backend_name(DeviceKind::Cpu) == "shm");
  without_mpi.shutdown();
  unsetenv("RONDE_CPU_BACKEND");
  unsetenv("RONDE_PROCESS_SETS");
}

}  // namespace
}  // namespace ronde::test
