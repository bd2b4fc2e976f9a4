// SPDX-License-Identifier: Apache-2.0
// Which threads may leave names out: Note [Who calls without a name] in name_registry.h.
#include <atomic>
#include <catch2/catch.hpp>
#include <latch>

#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

/// A sum over two ranks, of ones.
void check_sums(Runtime& runtime, ProcessSet set = {}) {
  std::vector<float> values(3, 1.0F);
  Request request = sum_request(values, "");
  request.set = set;
  runtime.run(request);
  check(values == std::vector<float>(3, 2.0F), "the sum");
}

/// Why an operation without a name is refused here; empty if it is not.
std::string refusal(Runtime& runtime) {
  std::vector<float> values(3, 1.0F);
  try {
    runtime.submit(sum_request(values, "")).wait();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

/// Runs `others` on the calling thread after another one has left names out, and before it ends.
void beside_first_thread(Runtime& runtime, const std::function<void()>& others) {
  std::latch first_has_called(1), others_have(1);
  run_ranks(2, [&](int thread) {
    if (thread == 0) {
      check_sums(runtime);
      first_has_called.count_down();
      others_have.wait();
      check_sums(runtime);
    } else {
      first_has_called.wait();
      others();
      others_have.count_down();
    }
  });
}

}  // namespace

TEST_CASE("the first thread that leaves names out is the only one until it ends") {
  run_group(2, [](int rank, Runtime& runtime) {
    for (int round = 0; round < 3; ++round) {
      beside_first_thread(runtime, [&] {
        const std::string text = refusal(runtime);
        check_contains(text,
                       "rank " + std::to_string(rank) + ": allreduce without a name is matched");
        check_contains(text, "another thread of this rank until it ends");
        check_contains(text_of<UsageError>([&] { runtime.submit(barrier_request()); }),
                       "barrier without a name");
        std::vector<float> values(1, 1.0F);
        check_contains(
            text_of<UsageError>([&] { runtime.submit_group({sum_request(values, "")}); }),
            "the group with allreduce without a name");
        runtime.run(sum_request(values, "with a name"));
        check(values[0] == 2.0F, "the sum of the one that has a name");
      });
    }
    check_sums(runtime);
  });
}

TEST_CASE("of four threads that leave names out at once, three are refused") {
  run_group(2, [](int, Runtime& runtime) {
    std::latch all_have_called(4);
    std::atomic<int> refused{0};
    run_ranks(4, [&](int) {
      for (int i = 0; i < 100; ++i) {
        if (refusal(runtime).empty()) continue;
        ++refused;
        break;
      }
      all_have_called.arrive_and_wait();
    });
    check_equal(refused.load(), 3, "how many threads were refused");
  });
}

TEST_CASE("each process set has a thread of its own that leaves names out") {
  run_group(2, [](int, Runtime& runtime) {
    const ProcessSet set = runtime.add_process_set({0, 1});
    beside_first_thread(runtime, [&] {
      check_sums(runtime, set);
      check(!refusal(runtime).empty(), "it is another thread's in the set of all ranks");
    });
  });
}

TEST_CASE("a callback cannot leave a name out, whichever thread runs it") {
  run_group(2, [](int, Runtime& runtime) {
    std::vector<float> values(1, 1.0F);
    const auto check_refused = [&](const Work& work, bool waits) {
      std::string text;
      std::latch called(1);
      work.on_done([&] {
        try {
          runtime.submit(barrier_request());
        } catch (const UsageError& error) {
          text = error.what();
        }
        called.count_down();
      });
      if (waits) work.wait();
      called.wait();
      check_contains(text, "barrier without a name is matched");
      check_contains(text, "Give those of callbacks a name");
    };
    for (const char* const owner : {"nobody", "this thread"}) {
      check_refused(runtime.submit(sum_request(values, owner)), false);
      check_refused(runtime.submit(sum_request(values, owner)), true);
      const Work done = runtime.submit(sum_request(values, owner));
      done.wait();
      check_refused(done, false);
      check_sums(runtime);
    }
  });
}

TEST_CASE("the end of a thread may leave names out, and leaves the order to others") {
  struct AtEnd {
    Runtime* runtime = nullptr;
    ThreadErrors* errors = nullptr;
    ~AtEnd() {
      errors->catch_from([this] { check_sums(*runtime); });
    }
  };
  run_group(2, [](int, Runtime& runtime) {
    ThreadErrors errors;
    std::thread first([&] {
      thread_local AtEnd at_end;
      at_end = {&runtime, &errors};
      errors.catch_from([&] { check_sums(runtime); });
    });
    first.join();
    errors.rethrow();
    check_sums(runtime);
  });
}

TEST_CASE("threads and callbacks that the program orders may leave names out") {
  constexpr int kCalls = 60;
  const auto body = [](int rank, Runtime& runtime) {
    std::vector<std::vector<float>> values;
    for (std::size_t i = 1; i <= kCalls; ++i) values.emplace_back(i, 1.0F);  // no two are alike
    const Work done = runtime.submit(barrier_request());
    done.wait();
    std::vector<Work> works(kCalls);
    std::atomic<int> next{0};
    const auto call = [&](int i) {
      Request request = sum_request(values[static_cast<std::size_t>(i)], "");
      request.caller_orders = true;
      Request barrier = barrier_request();
      barrier.caller_orders = true;
      Work& work = works[static_cast<std::size_t>(i)];
      if (i % 5 == 0) runtime.submit(barrier);
      work = i % 3 == 0 ? runtime.submit_group({request}).front() : runtime.submit(request);
    };
    // Another thread's turn on each rank.
    run_ranks(3, [&](int thread) {
      for (int turn = next; turn < kCalls; turn = next) {
        if ((turn + rank) % 3 != thread) {
          next.wait(turn);
          continue;
        }
        if (turn % 2 == 0) call(turn);
        if (turn % 2 == 1) done.on_done([&] { call(turn); });
        next = turn + 1;
        next.notify_all();
      }
    });
    for (const Work& work : works) work.wait();
    for (const auto& sums : values) check(sums == std::vector(sums.size(), 2.0F), "each sum");
    check_sums(runtime);
  };
  run_group(2, body);
}
