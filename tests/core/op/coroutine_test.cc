// SPDX-License-Identifier: Apache-2.0
#include "ronde/coroutine.h"

#include <catch2/catch.hpp>
#include <latch>
#include <thread>

#include "core/src/op/work_state.h"
#include "tests/support/ranks/faulty_group.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

using Pending = std::shared_ptr<WorkState>;

Pending some_operation() {
  return std::make_shared<WorkState>("allreduce 'x'", std::weak_ptr<WaitHelper>(),
                                     std::make_shared<Logger>(LogLevel::Off));
}

std::exception_ptr some_error() {
  return std::make_exception_ptr(UsageError("it went wrong"));
}

/// Notes `number` once `operation` is done.
Task<> note(Pending operation, int number, std::vector<int>& noted) {
  const Work work(operation);
  co_await work;
  noted.push_back(number);
}

Task<int> number_after(Work work, int number) {
  co_await work;
  co_return number;
}

Task<int> sum_after(Work first, Work second) {
  Task<int> one = number_after(first, 1), two = number_after(second, 2);
  const int later = co_await two;
  co_return later + co_await one;
}

/// Sums over the ranks of `runtime`, one after the other, of which each begins with the last sum.
Task<float> repeated_sum(Runtime& runtime, std::string name, int times) {
  std::vector<float> value = {1.0F};
  for (int i = 0; i < times; ++i) {
    const Work work = runtime.submit(sum_request(value, name));
    co_await work;
  }
  co_return value[0];
}

}  // namespace

TEST_CASE("coroutines go on in the order in which they awaited, on the thread that resumes") {
  std::vector<int> noted;
  const Pending operations[] = {some_operation(), some_operation(), some_operation()};
  std::vector<Task<>> tasks;
  for (int i = 0; i < 3; ++i) tasks.push_back(note(operations[i], i, noted));
  CHECK_FALSE(resume_coroutine(nanoseconds(0)));
  CHECK_FALSE(resume_coroutine(milliseconds(1)));
  operations[2]->complete(nullptr);
  operations[1]->complete(nullptr);
  CHECK(noted.empty());
  CHECK(resume_coroutine());
  CHECK(noted == std::vector{1});
  CHECK(resume_coroutine(nanoseconds(0)));
  CHECK_FALSE(resume_coroutine(nanoseconds(0)));
  bool resumes = true;
  std::thread other([&] {
    resumes = resume_coroutine();  // it has none of its own
    operations[0]->complete(nullptr);
  });
  tasks[0].get();
  other.join();
  CHECK_FALSE(resumes);
  CHECK(noted == std::vector{1, 2, 0});
  CHECK_FALSE(resume_coroutine());
}

TEST_CASE("a thread that sleeps for several operations goes on with the one that ends") {
  for (int round = 0; round < 6; ++round) {
    const Pending first = some_operation(), second = some_operation();
    std::vector<int> noted;
    Task<> one = note(first, 1, noted), two = note(second, 2, noted);
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(round % 2));  // mostly beyond the patience
      second->complete(nullptr);
    });
    two.get();
    other.join();
    CHECK_FALSE(one.done());
    first->complete(nullptr);
    one.get();
    CHECK(noted == std::vector{2, 1});
  }
}

TEST_CASE("a work that is done suspends nothing, and tasks await tasks") {
  CHECK(number_after(Work(), 7).done());
  const Pending first = some_operation(), second = some_operation();
  Task<int> sum = sum_after(Work(first), Work(second));
  first->complete(nullptr);
  CHECK(resume_coroutine());
  CHECK_FALSE(sum.done());
  second->complete(nullptr);
  CHECK(sum.get() == 3);
}

TEST_CASE("an error is thrown where the coroutine waits, and again where its task is awaited") {
  const Pending good = some_operation(), bad = some_operation();
  Task<int> sum = sum_after(Work(bad), Work(good));
  bad->complete(some_error());
  good->complete(nullptr);
  CHECK_THROWS_AS(sum.get(), UsageError);
  CHECK(sum.done());
  Task<int> at_once = number_after(Work(bad), 1);
  CHECK_THROWS_WITH(at_once.get(), "it went wrong");
}

TEST_CASE("a frame that is destroyed while suspended does not go on, and harms no other") {
  std::vector<int> noted;
  const Pending operations[] = {some_operation(), some_operation()};
  auto dropped = std::make_unique<Task<>>(note(operations[0], 0, noted));
  Task<> kept = note(operations[1], 1, noted);
  CHECK_FALSE(resume_coroutine(milliseconds(1)));  // both are watched by the queue
  SECTION("before the operation ends") {
    dropped.reset();
    operations[0]->complete(nullptr);
  }
  SECTION("after it") {
    operations[0]->complete(nullptr);
    dropped.reset();
  }
  SECTION("by a coroutine that goes on") {
    const auto destroy = [](Work work, std::unique_ptr<Task<>>& task) -> Task<> {
      co_await work;
      task.reset();
    };
    const Pending sooner = some_operation();
    Task<> destroyer = destroy(Work(sooner), dropped);
    sooner->complete(nullptr);
    destroyer.get();
    operations[0]->complete(nullptr);
  }
  CHECK_FALSE(resume_coroutine(nanoseconds(0)));
  operations[1]->complete(nullptr);
  kept.get();
  CHECK(noted == std::vector{1});
}

TEST_CASE("a frame may outlive the thread on which it is suspended") {
  std::vector<int> noted;
  const Pending operation = some_operation();
  std::optional<Task<>> task;
  std::thread([&] { task.emplace(note(operation, 0, noted)); }).join();
  CHECK_THROWS_WITH(task->get(), Catch::Contains("awaits no Work on this thread"));
  task.reset();
  operation->complete(nullptr);
  CHECK(noted.empty());
}

TEST_CASE("a callback of Ronde that awaits is told that it must not") {
  const Pending awaited = some_operation();
  std::optional<Task<int>> task;
  const auto begin = [&] { task.emplace(number_after(Work(awaited), 1)); };
  SECTION("on its thread") {
    run_group(1, [&](int, Runtime& runtime) {
      std::vector<float> value = {1.0F};
      std::latch called(1);
      runtime.submit(sum_request(value, "x")).on_done([&] {
        begin();
        called.count_down();
      });
      called.wait();
    });
  }
  SECTION("at once, as the work is done") {
    const Pending done = some_operation();
    done->complete(nullptr);
    Work(done).on_done(begin);
  }
  REQUIRE(task->done());
  CHECK_THROWS_WITH(task->get(), Catch::Contains("co_await of a Work in a callback"));
}

TEST_CASE("ranks that get their tasks in opposite orders wait for none in vain") {
  constexpr int kTimes = 10;
  run_group(2, [](int rank, Runtime& runtime) {
    std::vector<Task<float>> tasks;
    for (const char* const name : {"a", "b", "c"}) {
      tasks.push_back(repeated_sum(runtime, name, kTimes));
    }
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      const float sum = tasks[rank == 0 ? i : tasks.size() - 1 - i].get();
      check_equal(sum, static_cast<float>(1 << kTimes), "1, doubled ten times");
    }
  });
}

TEST_CASE("the loss of a rank ends every coroutine of the others") {
  inproc::Group group(std::vector<int>(3, 0));
  std::latch ready(3);
  run_ranks(3, [&](int rank) {
    Runtime runtime(options_of(group, rank));
    std::vector<Task<float>> tasks;
    for (const char* const name : {"a", "b"}) {
      if (rank != 1) tasks.push_back(repeated_sum(runtime, name, 5));
    }
    ready.arrive_and_wait();
    if (rank == 1) return group.kill(rank);
    for (Task<float>& task : tasks) {
      const Death death = death_of([&] { task.get(); });
      check_equal(death.rank, 1, "the lost rank");
      check_contains(death.text, "rank 1 was lost");
    }
    runtime.shutdown();
  });
}
