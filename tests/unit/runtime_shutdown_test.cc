// SPDX-License-Identifier: Apache-2.0
// How groups end by agreement, and what can go wrong then.
#include <catch2/catch.hpp>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "ronde/error.h"
#include "tests/support/captured_errors.h"
#include "tests/unit/faulty_group.h"
#include "tests/unit/messages_of_ranks.h"
#include "tests/unit/results_of_ranks.h"

using namespace ronde;
using namespace ronde::test;

TEST_CASE("a backend that cannot be closed fails the shutdown of its rank") {
  FaultyGroup all(2);
  all.faults[1]->fail_close("the cable is cut");
  run_ranks(2, [&](int rank) {
    Runtime runtime(all.options(rank));
    if (rank == 0) return runtime.shutdown();
    const Death death = death_of([&] { runtime.shutdown(); });
    check(death.rank == 1, "itself");
    check_contains(death.text, "rank 1 cannot close its backend: the cable is cut");
  });
}

TEST_CASE("shutdown can be called again, and by several threads; leaving then changes nothing") {
  run_group(2, [](int, Runtime& runtime) {
    std::thread other([&] { runtime.shutdown(); });
    runtime.shutdown();
    other.join();
    runtime.shutdown();
    check(!runtime.leave(), "it has ended by agreement");
    check_contains(text_of<UsageError>([&] { runtime.submit(barrier_request()); }),
                   "shutdown() has been called");
  });
}

TEST_CASE("a shutdown waits for every operation that all its ranks have submitted") {
  Config config = test_config();
  config.cycle_time_ms = 10000.0;
  const auto body = [](int rank, Runtime& runtime) {
    const ProcessSet pair = runtime.add_process_set({0, 2});
    std::vector<float> values(5000, 1.0F), in_pair(5000, 1.0F);
    std::vector<float> message(5000, static_cast<float>(rank));
    std::vector<Work> works = {runtime.submit(sum_request(values, "x"))};
    if (rank == 1) works.push_back(runtime.submit(send_request(message, 2)));
    if (rank == 2) works.push_back(runtime.submit(recv_request(message, 1)));
    Request request = sum_request(in_pair, "x");
    request.set = pair;
    if (rank != 1) works.push_back(runtime.submit(request));
    runtime.shutdown();
    for (const Work& work : works) {
      check(work.done(), "done by then");
      work.wait();
    }
    check(values[4999] == 3.0F, "the sum");
    check(rank == 1 || in_pair[4999] == 2.0F, "the sum in the set");
    check(rank != 2 || message[4999] == 1.0F, "the message");
  };
  run_on(GENERATE(kOneHost, kLeaderAndOne), body, config);
}

TEST_CASE("a rank that shuts down while another waits for it is named on all") {
  for (const int leaver : {0, 1}) {
    const inproc::Group group(2);
    const auto deaths = on_each_rank(2, [&](int rank) {
      Runtime runtime(options_of(group, rank));
      return rank == leaver ? death_of([&] { runtime.shutdown(); }) : death_in_barrier(runtime);
    });
    check_same_death(deaths, leaver,
                     {"called shutdown() while", "barrier number 0 without a name"});
  }
}

TEST_CASE("a rank that does not come to the shutdown is named when its time is up") {
  for (const int absent : {0, 1}) {
    const inproc::Group group(2);
    std::latch over(1);
    run_ranks(2, [&](int rank) {
      Config config = test_config();
      config.shutdown_timeout_s = 0.2;
      Runtime runtime(options_of(group, rank, config));
      if (rank == absent) {
        over.wait();
        check(death_in_barrier(runtime).rank == absent, "itself");
        return;
      }
      const Death death = death_of([&] { runtime.shutdown(); });
      over.count_down();
      check(death.rank == absent, "the absent rank");
      check_contains(death.text, "RONDE_SHUTDOWN_TIMEOUT_S");
    });
  }
}

TEST_CASE("a rank that dies after all agreed to stop, in an operation, is named") {
  FaultyGroup all(3);
  all.faults[1]->hold_starts();
  std::vector<std::unique_ptr<Runtime>> runtimes(3);
  run_ranks(3, [&](int rank) {
    runtimes[static_cast<std::size_t>(rank)] = std::make_unique<Runtime>(all.options(rank));
  });
  std::vector<std::vector<float>> values(3, std::vector<float>(4, 1.0F));
  std::vector<Death> deaths(3);
  std::latch survivors_know(2);
  run_ranks(4, [&](int rank) {
    if (rank == 3) {
      // The operation is the first decision, the agreement to stop the second.
      const auto decisions = [&] { return counter_of(*runtimes[0], "negotiation", "decisions"); };
      while (decisions() < 2) std::this_thread::yield();
      all.group.kill(1);
      survivors_know.wait();
      runtimes[1]->abort("the test is over");
      return;
    }
    const auto index = static_cast<std::size_t>(rank);
    const Work work = runtimes[index]->submit(sum_request(values[index], "x"));
    all.faults[index]->wait_begun(1);
    deaths[index] = death_of([&] { runtimes[index]->shutdown(); });
    if (rank != 1) survivors_know.count_down();
  });
  CHECK(deaths[0] == deaths[2]);
  CHECK(deaths[0].rank == 1);
  CHECK_THAT(deaths[0].text, Catch::Contains("rank 1 was lost: it was killed"));
}

TEST_CASE("a group that is dead before shutdown lets it pass in silence") {
  const CapturedErrors errors;
  const inproc::Group group(2);
  Config config = test_config();
  config.log_level = "info";
  run_ranks(2, [&](int rank) {
    Runtime runtime(options_of(group, rank, config));
    if (rank == 1) runtime.abort("over");
    death_in_barrier(runtime);
    runtime.shutdown();
  });
  // The death itself is told, by rank 0; the shutdowns add nothing.
  const std::string text = errors.text();
  CHECK_THAT(text, Catch::Contains("[ronde rank 0] error: rank 1 aborted: over"));
  CHECK(occurrences(text, "\n") == 1);
}

TEST_CASE("a rank that leaves, in a callback too, ends its waits and is named on all") {
  const std::string where = GENERATE("a wait", "a shutdown", "a callback");
  const std::string how = where == "a shutdown" ? " left before its ronde::shutdown() was over"
                                                : " left without calling ronde::shutdown()";
  for (const int leaver : {0, 1}) {
    const inproc::Group group(2);
    run_ranks(2, [&](int rank) {
      Runtime runtime(options_of(group, rank));
      Death death;
      if (rank != leaver) {
        death = death_of([&] {
          for (;;) runtime.create_process_set({rank});
        });
      } else if (where == "a callback") {
        std::vector<float> values(3, 1.0F);
        Request request = sum_request(values, "x");
        request.set = runtime.create_process_set({rank});
        std::latch has_left(1);
        runtime.submit(request).on_done([&] {
          runtime.leave();
          runtime.leave();
          has_left.count_down();
        });
        return has_left.wait();
      } else {
        std::thread blocked([&] {
          death = where == "a shutdown" ? death_of([&] { runtime.shutdown(); })
                                        : death_in_barrier(runtime);
        });
        const auto wakes = [&] { return counter_of(runtime, "submission", "wakes"); };
        const auto operations = [&] { return counter_of(runtime, "submission", "operations"); };
        while (wakes() == 0 && operations() == 0) std::this_thread::yield();
        check(runtime.leave(), "not by agreement");
        blocked.join();
        check(runtime.leave(), "nor later");
      }
      check(death.rank == leaver, "who left");
      check_contains(death.text, "rank " + std::to_string(leaver) + how);
    });
  }
}
