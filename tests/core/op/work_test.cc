// SPDX-License-Identifier: Apache-2.0
#include "ronde/work.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "core/src/op/work_state.h"
#include "ronde/error.h"
#include "tests/support/harness/captured_errors.h"

namespace {

using namespace ronde;

struct CountedHelp final : WaitHelper {
  void help(WorkState& work, Stage goal, TimePoint deadline) noexcept override {
    ++calls;
    work.block(goal, deadline);
  }
  void on_error_read(const std::exception_ptr&) noexcept override { ++errors; }
  std::atomic<int> calls{0}, errors{0};
};

struct Fixture {
  std::shared_ptr<CountedHelp> engine = std::make_shared<CountedHelp>();
  std::shared_ptr<WorkState> state = std::make_shared<WorkState>(
      "allreduce 'x'", engine, std::make_shared<Logger>(LogLevel::Info, 2));
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

TEST_CASE("copies of a handle share its operation, which completes once") {
  Fixture fixture;
  const Work work(fixture.state);
  const Work copy = work;
  int called = 0;
  work.on_done([&] { ++called; });
  CHECK_FALSE(copy.done());
  CHECK(copy.error() == nullptr);
  fixture.state->complete(nullptr, false);
  fixture.state->complete(some_error());
  for (const Work& handle : {work, copy}) {
    CHECK(handle.done());
    CHECK(handle.error() == nullptr);
    CHECK_FALSE(handle.contributed());
    handle.wait();
  }
  CHECK(called == 1);
  copy.on_done([&] { ++called; });
  CHECK(called == 2);
}

TEST_CASE("waiting for a while and giving up harms nothing") {
  Fixture fixture;
  const Work work(fixture.state);
  CHECK_FALSE(work.wait_for(std::chrono::milliseconds(1)));
  CHECK_FALSE(work.wait_for(std::chrono::nanoseconds(-5)));
  CHECK(fixture.engine->calls == 2);
  std::thread engine([&] { fixture.state->complete(nullptr); });
  CHECK(work.wait_for(std::chrono::nanoseconds::max()));  // longer than the clock can hold
  engine.join();
  CHECK(work.wait_for(std::chrono::nanoseconds(0)));
  CHECK(fixture.engine->calls == 4);
}

TEST_CASE("a failed operation throws each time it is waited for") {
  Fixture fixture;
  const Work work(fixture.state);
  fixture.state->complete(some_error());
  for (int i = 0; i < 2; ++i) CHECK_THROWS_WITH(work.wait(), "it went wrong");
  CHECK_THROWS_AS(work.wait_for(std::chrono::nanoseconds(0)), UsageError);
  CHECK(work.error() != nullptr);
}

TEST_CASE("an error that nobody read is logged when the last handle goes") {
  struct Row {
    std::exception_ptr error;
    std::function<void(const Work&)> before, after;  ///< it is completed
    std::string logged;
  };
  const auto nothing = [](const Work&) {};
  const auto wait = [](const Work& work) { CHECK_THROWS(work.wait()); };
  const auto ask = [](const Work& work) { static_cast<void>(work.error()); };
  const std::string unread = "allreduce 'x' failed and nobody asked";
  const Row rows[] = {{some_error(), nothing, nothing, unread + ": it went"},
                      {std::make_exception_ptr(5), nothing, nothing, unread},
                      {some_error(), nothing, wait, ""},
                      {some_error(), nothing, ask, ""},
                      // An unfinished operation has none to read yet.
                      {some_error(), ask, nothing, unread}};
  for (const Row& row : rows) {
    const test::CapturedErrors errors;
    Fixture fixture;
    {
      const Work work(fixture.state);
      row.before(work);
      fixture.state->complete(row.error);
      row.after(work);
    }
    CHECK(errors.text().empty());
    fixture.state.reset();
    CHECK(errors.text().empty() == row.logged.empty());
    CHECK(fixture.engine->errors == (row.logged.empty() ? 1 : 0));
    if (!row.logged.empty()) {
      CHECK_THAT(errors.text(), Catch::Contains("rank 2") && Catch::Contains(row.logged));
    }
  }
  const test::CapturedErrors errors;
  Fixture unfinished;
  unfinished.state.reset();
  CHECK(errors.text().empty());
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
