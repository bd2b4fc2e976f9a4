// SPDX-License-Identifier: Apache-2.0
// Operations that are prepared once and started many times.
#include <catch2/catch.hpp>
#include <cstddef>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "ronde/error.h"
#include "tests/support/ranks/goes_on.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

/// Quiet, with a schedule that freezes soon.
Config freezing_config() {
  Config config = test_config();
  config.freeze_after_steps = 3;
  return config;
}

Request request_of(Collective kind, const std::string& name) {
  Request request;
  request.kind = kind;
  request.name = name;
  request.shape = {4};
  return request;
}

/// The buffers of one start. Each rank brings rank + step.
struct Buffers {
  Buffers(int rank, int step, std::size_t results)
      : input(4, static_cast<float>(rank + step)), output(results, -1.0F) {}

  std::vector<float> input;
  std::vector<float> output;
};

struct Kind {
  Collective kind;
  std::size_t results;  ///< elements, on two ranks
  std::function<std::vector<float>(float step)>
      expected;  ///< of ranks that bring step and step + 1
};

const std::vector<Kind> kKinds = {
    {Collective::Allreduce, 4, [](float step) { return std::vector<float>(4, 2 * step + 1); }},
    {Collective::Broadcast, 4, [](float step) { return std::vector<float>(4, step); }},
    {Collective::Allgather, 8,
     [](float step) {
       std::vector<float> all(4, step);
       all.resize(8, step + 1);
       return all;
     }},
    {Collective::Alltoall, 4,
     [](float step) {
       std::vector<float> halves(2, step);
       halves.resize(4, step + 1);
       return halves;
     }},
    {Collective::Reducescatter, 2, [](float step) { return std::vector<float>(2, 2 * step + 1); }},
};

/// `start` of a persistent operation throws a UsageError with this text.
void check_refused(const PersistentOp& operation, const Start& start, const std::string& text) {
  check_contains(text_of<UsageError>([&] { operation.start(start); }), text);
}

Start in_place(std::vector<float>& values) {
  return {.input = values.data(), .output = values.data()};
}

}  // namespace

TEST_CASE("persistent operations are what submitted ones are, cached and frozen, named or not") {
  for (const std::string prefix : {"", "op "}) {
    run_group(
        2,
        [&](int rank, Runtime& runtime) {
          std::vector<PersistentOp> operations;
          for (std::size_t i = 0; i < kKinds.size(); ++i) {
            const std::string name = prefix.empty() ? "" : prefix + std::to_string(i);
            operations.push_back(runtime.prepare(request_of(kKinds[i].kind, name)));
          }
          for (int step = 0; step < 12; ++step) {
            std::vector<std::unique_ptr<Buffers>> buffers;
            std::vector<Work> works;
            for (std::size_t i = 0; i < kKinds.size(); ++i) {
              Buffers& own =
                  *buffers.emplace_back(std::make_unique<Buffers>(rank, step, kKinds[i].results));
              // Rank 1 submits in every other step what rank 0 has prepared.
              if (rank == 0 || step % 2 == 0) {
                works.push_back(
                    operations[i].start({.input = own.input.data(), .output = own.output.data()}));
                continue;
              }
              Request request =
                  request_of(kKinds[i].kind, prefix.empty() ? "" : prefix + std::to_string(i));
              request.input = own.input.data();
              request.output = own.output.data();
              works.push_back(runtime.submit(request));
            }
            for (std::size_t i = 0; i < kKinds.size(); ++i) {
              works[i].wait();
              check_equal(
                  buffers[i]->output, kKinds[i].expected(static_cast<float>(step)),
                  std::string(to_string(kKinds[i].kind)) + " in step " + std::to_string(step));
            }
          }
          check(counter_of(runtime, "schedule", "freezes") > 0, "the schedule froze");
        },
        freezing_config());
  }
}

TEST_CASE(
    "each start of a persistent operation sets whether this rank contributes, and its finish") {
  run_group(
      2,
      [](int rank, Runtime& runtime) {
        std::vector<float> values(3);
        const PersistentOp sum = runtime.prepare(sum_request(values, "x"));
        int finished = 0;
        for (int step = 0; step < 12; ++step) {
          values.assign(3, 5.0F);
          Start start = in_place(values);
          const bool contributes = rank == 0 ? step % 3 != 0 : step % 4 != 0;
          start.contributes = contributes;
          start.finish = [&finished] { ++finished; };
          start.caller_waits = step % 2 == 0;
          const Work work = sum.start(std::move(start));
          work.wait();
          const int adding = (step % 3 != 0 ? 1 : 0) + (step % 4 != 0 ? 1 : 0);
          check(work.contributed() == (adding > 0), "who contributed");
          if (adding > 0) check_equal(values[2], 5.0F * static_cast<float>(adding), "the sum");
        }
        check_equal(finished, 11, "calls of finish");  // in step 0 nobody contributed
      },
      freezing_config());
}

TEST_CASE("a persistent alltoall keeps its splits, and persistent messages find each other") {
  run_group(2, [](int rank, Runtime& runtime) {
    Request request = request_of(Collective::Alltoall, "rows");
    request.shape = {3};
    request.splits = rank == 0 ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{2, 1};
    const PersistentOp rows = runtime.prepare(request);
    std::vector<float> sent(2, 1.0F);
    std::vector<float> message(2);
    const PersistentOp one_way =
        runtime.prepare(rank == 0 ? send_request(sent, 1) : recv_request(message, 0));
    const std::vector<float> input(3, static_cast<float>(rank + 1));
    for (int step = 0; step < 4; ++step) {
      std::vector<float> output(3);
      const Work work = rows.start({.input = input.data(), .output = output.data()});
      work.wait();
      check_equal(output, rank == 0 ? std::vector<float>{1, 2, 2} : std::vector<float>{1, 1, 2},
                  "the rows");
      check_equal(work.received_splits(),
                  rank == 0 ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{2, 1},
                  "the splits");
      sent[1] = static_cast<float>(step);
      one_way.start(rank == 0 ? Start{.input = sent.data()} : Start{.output = message.data()})
          .wait();
      if (rank == 1) check_equal(message[1], static_cast<float>(step), "the message");
    }
  });
}

TEST_CASE("a persistent operation that cannot be started reports why, and nothing is lost") {
  std::latch checked(1);  // rank 0 has, while its operation was in flight
  run_group(2, [&](int rank, Runtime& runtime) {
    std::vector<float> values(3, 1.0F);
    std::vector<float> others(3, 1.0F);
    check_contains(text_of<UsageError>([&] { PersistentOp().start(in_place(values)); }),
                   "did not make");
    check_contains(text_of<UsageError>([&] {
                     Request join;
                     join.kind = Collective::Join;
                     static_cast<void>(runtime.prepare(join));
                   }),
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

TEST_CASE("names of persistent operations are forgotten with them") {
  run_group(2, [](int, Runtime& runtime) {
    const ProcessSet set = runtime.add_process_set({0, 1});
    std::vector<float> values(1);
    for (int i = 0; i < 3000; ++i) {
      values[0] = 1.0F;
      Request request = sum_request(values, "t" + std::to_string(i));
      request.set = set;
      const PersistentOp sum = runtime.prepare(request);
      if (i % 10 != 0) continue;
      sum.start({.input = values.data(), .output = values.data(), .caller_waits = true}).wait();
      check_equal(values[0], 2.0F, "the sum");
    }
    runtime.remove_process_set(set);  // nothing is in flight
    check_goes_on(runtime);
  });
}
