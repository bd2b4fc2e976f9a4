// SPDX-License-Identifier: Apache-2.0
// Operations that are prepared once and started many times. That they are what submitted ones are,
// of all kinds, cached and frozen: tests/sweeps/fuzz/random_programs_test.cc.
#include <catch2/catch.hpp>
#include <latch>

#include "tests/support/ranks/goes_on.h"

namespace {

using namespace ronde;
using namespace ronde::test;

/// `start` of a persistent operation throws a UsageError with this text.
void check_refused(const PersistentOp& operation, const Start& start, const std::string& text) {
  check_contains(text_of<UsageError>([&] { operation.start(start); }), text);
}

Start in_place(std::vector<float>& values) {
  return {.input = values.data(), .output = values.data()};
}

}  // namespace

TEST_CASE(
    "each start of a persistent operation sets whether this rank contributes, and its finish") {
  Config config = test_config();
  config.freeze_after_steps = 3;
  const auto body = [](int rank, Runtime& runtime) {
    std::vector<float> values(3);
    const PersistentOp sum = runtime.prepare(sum_request(values, "x"));
    int finished = 0;
    for (int step = 0; step < 12; ++step) {
      values.assign(3, 5.0F);
      Start start = in_place(values);
      start.contributes = rank == 0 ? step % 3 != 0 : step % 4 != 0;
      start.finish = [&finished] { ++finished; };
      start.caller_waits = step % 2 == 0;
      const Work work = sum.start(std::move(start));
      work.wait();
      const int adding = (step % 3 != 0 ? 1 : 0) + (step % 4 != 0 ? 1 : 0);
      check(work.contributed() == (adding > 0), "who contributed");
      if (adding > 0) check_equal(values[2], 5.0F * static_cast<float>(adding), "the sum");
    }
    check_equal(finished, 11, "calls of finish");  // in step 0 nobody contributed
  };
  run_group(2, body, config);
}

TEST_CASE("a persistent operation that cannot be started reports why, and nothing is lost") {
  std::latch checked(1);  // rank 0 has, while its operation was in flight
  run_group(2, [&](int rank, Runtime& runtime) {
    std::vector<float> values(3, 1.0F);
    std::vector<float> others(3, 1.0F);
    check_contains(text_of<UsageError>([&] { PersistentOp().start(in_place(values)); }),
                   "did not make");
    check_contains(text_of<UsageError>([&] { runtime.prepare(join_request()); }),
                   "a join cannot be prepared");
    const PersistentOp sum = runtime.prepare(sum_request(values, "x"));
    const PersistentOp same = runtime.prepare(sum_request(others, "x"));
    check_refused(sum, {.output = values.data()}, "allreduce 'x': input is null");
    check_refused(sum, {.input = values.data()}, "allreduce 'x': output is null");
    if (rank == 1) checked.wait();
    const Work first = sum.start(in_place(values));
    if (rank == 0) {
      check_refused(sum, in_place(others), "allreduce 'x' is still in flight");
      check_refused(same, in_place(others), "allreduce 'x' is still in flight");
      check_contains(text_of<UsageError>([&] { runtime.submit(sum_request(others, "x")); }),
                     "allreduce 'x' is still in flight");
      const PersistentOp other = runtime.prepare(sum_request(values, "y"));
      check_refused(other, in_place(values), "writes its result to memory that");
      checked.count_down();
    }
    first.wait();
    check_equal(values[2], 2.0F, "the first sum");
    same.start(in_place(others)).wait();
    check_equal(others[2], 2.0F, "the second sum");
    check_goes_on(runtime);
  });
}

TEST_CASE("a persistent operation ends with its process set and with its runtime, but not before") {
  PersistentOp left;
  run_group(2, [&](int rank, Runtime& runtime) {
    std::vector<float> values(3, 1.0F);
    const ProcessSet set = runtime.add_process_set({1, 0});
    Request request = sum_request(values, "x");
    request.set = set;
    PersistentOp sum = runtime.prepare(request);
    sum.start(in_place(values)).wait();
    check_equal(values[0], 2.0F, "the sum of the set");
    runtime.remove_process_set(set);
    check_refused(sum, in_place(values), "allreduce 'x' in process set 1: the set was removed");
    sum = runtime.prepare(sum_request(values, "y"));
    Work last = sum.start(in_place(values));
    sum = {};  // the operation goes on
    last.wait();
    check_equal(values[0], 4.0F, "the sum of all");
    runtime.submit(sum_request(values, "y")).wait();
    if (rank == 0) left = runtime.prepare(sum_request(values, "z"));
    runtime.shutdown();
    if (rank == 0) {
      check_contains(text_of<Error>([&] { left.start(in_place(values)); }), "shutdown");
    }
    check_contains(text_of<Error>([&] { runtime.prepare(sum_request(values, "late")); }),
                   "shutdown");
  });
  std::vector<float> values(3);
  CHECK_FALSE(left);
  check_refused(left, in_place(values), "the Runtime that prepared it has ended");
}
