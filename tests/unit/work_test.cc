// SPDX-License-Identifier: Apache-2.0
#include "ronde/work.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <string>
#include <thread>

#include "core/src/work_state.h"
#include "ronde/error.h"

namespace {

using namespace ronde;

struct CountedHelp final : WaitHelper {
  void help(const WorkState&, Stage, TimePoint) noexcept override { ++calls; }
  void note_wait() noexcept override {}
  void rouse(const WorkState&) noexcept override {}
  std::atomic<int> calls{0};
};

struct Fixture {
  std::shared_ptr<std::string> logged = std::make_shared<std::string>();
  std::shared_ptr<CountedHelp> engine = std::make_shared<CountedHelp>();
  std::shared_ptr<WorkState> state = std::make_shared<WorkState>(
      "allreduce 'x'", engine,
      std::make_shared<Logger>(LogLevel::Info, 2,
                               [logged = logged](std::string_view line) { *logged += line; }));
};

std::exception_ptr some_error() {
  return std::make_exception_ptr(UsageError("it went wrong"));
}

}  // namespace

TEST_CASE("an empty handle is done without error") {
  const Work work;
  CHECK(work.done());
  work.wait();
  CHECK(work.wait_for(std::chrono::nanoseconds(0)));
  CHECK(work.error() == nullptr);
  CHECK(work.contributed());
  int called = 0;
  work.on_done([&] { ++called; });
  CHECK(called == 1);
}

TEST_CASE("copies of a handle share its operation") {
  Fixture fixture;
  const Work work(fixture.state);
  const Work copy = work;
  CHECK_FALSE(copy.done());
  CHECK(copy.error() == nullptr);
  fixture.state->complete(nullptr, false);
  CHECK(work.done());
  CHECK(copy.done());
  CHECK_FALSE(copy.contributed());
  copy.wait();
}

TEST_CASE("waiting for a while and giving up harms nothing") {
  Fixture fixture;
  const Work work(fixture.state);
  CHECK_FALSE(work.wait_for(std::chrono::milliseconds(1)));
  CHECK_FALSE(work.wait_for(std::chrono::nanoseconds(-5)));
  CHECK(fixture.engine->calls == 2);
  fixture.state->complete(nullptr);
  CHECK(work.wait_for(std::chrono::nanoseconds(0)));
  CHECK(fixture.engine->calls == 2);
}

TEST_CASE("waiting for longer than the clock can hold is waiting for ever") {
  Fixture fixture;
  const Work work(fixture.state);
  std::thread engine([&] { fixture.state->complete(nullptr); });
  CHECK(work.wait_for(std::chrono::nanoseconds::max()));
  engine.join();
}

TEST_CASE("a failed operation throws each time it is waited for") {
  Fixture fixture;
  const Work work(fixture.state);
  fixture.state->complete(some_error());
  for (int i = 0; i < 2; ++i) CHECK_THROWS_WITH(work.wait(), "it went wrong");
  CHECK_THROWS_AS(work.wait_for(std::chrono::nanoseconds(0)), UsageError);
  CHECK(work.error() != nullptr);
}

TEST_CASE("an operation completes once") {
  Fixture fixture;
  const Work work(fixture.state);
  int called = 0;
  work.on_done([&] { ++called; });
  fixture.state->complete(nullptr);
  fixture.state->complete(some_error());
  CHECK(called == 1);
  CHECK(work.error() == nullptr);
  work.on_done([&] { ++called; });
  CHECK(called == 2);
}

TEST_CASE("an error that nobody read is logged when the last handle goes") {
  Fixture fixture;
  {
    const Work work(std::move(fixture.state));
    fixture.state = nullptr;
    Work other = work;
  }
  CHECK(fixture.logged->empty());

  Fixture failed;
  failed.state->complete(some_error());
  CHECK(failed.logged->empty());
  failed.state.reset();
  CHECK_THAT(*failed.logged, Catch::Contains("rank 2") &&
                                 Catch::Contains("allreduce 'x' failed and nobody asked: it went"));
}

TEST_CASE("an error that is no exception of the standard library is logged, too") {
  Fixture fixture;
  fixture.state->complete(std::make_exception_ptr(5));
  fixture.state.reset();
  CHECK_THAT(*fixture.logged, Catch::Contains("allreduce 'x' failed and nobody asked"));
}

TEST_CASE("an error that was read is not logged") {
  Fixture waited;
  waited.state->complete(some_error());
  CHECK_THROWS(Work(waited.state).wait());
  waited.state.reset();
  CHECK(waited.logged->empty());

  Fixture asked;
  asked.state->complete(some_error());
  CHECK(Work(asked.state).error() != nullptr);
  asked.state.reset();
  CHECK(asked.logged->empty());
}

TEST_CASE("asking for the error of an unfinished operation does not count as reading it") {
  Fixture fixture;
  CHECK(Work(fixture.state).error() == nullptr);
  fixture.state->complete(some_error());
  fixture.state.reset();
  CHECK_FALSE(fixture.logged->empty());
}

TEST_CASE("many threads may wait for one operation") {
  Fixture fixture;
  const Work work(fixture.state);
  std::atomic<int> ended{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, work] {
      work.wait();
      ++ended;
    });
  }
  fixture.state->complete(nullptr);
  for (std::thread& thread : threads) thread.join();
  CHECK(ended == 8);
}
