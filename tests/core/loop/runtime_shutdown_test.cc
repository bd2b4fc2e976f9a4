// SPDX-License-Identifier: Apache-2.0
// How groups end by agreement, and what can go wrong then.
#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <latch>

#include "tests/support/harness/captured_errors.h"
#include "tests/support/ranks/faulty_group.h"
#include "tests/support/ranks/messages_of_ranks.h"
#include "tests/support/ranks/results_of_ranks.h"

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

TEST_CASE("a shutdown in a callback, which it would wait for, is refused") {
  std::latch registered(1);
  run_group(2, [&](int rank, Runtime& runtime) {
    if (rank == 1) registered.wait();
    const Work work = runtime.submit(barrier_request());
    std::promise<std::string> told;
    if (rank == 0) {
      work.on_done([&] { told.set_value(text_of<UsageError>([&] { runtime.shutdown(); })); });
      registered.count_down();
    }
    work.wait();
    if (rank == 0) check_contains(told.get_future().get(), "called in a callback");
    runtime.shutdown();
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
    check_same_death(
        deaths, leaver,
        {"called shutdown() while", "barrier number 0 without a name", "uneven data? see join()"});
  }
}

TEST_CASE("ranks in shutdown wait asleep for one that works, report it, and end at once with it") {
  const int worker = GENERATE(0, 1, 2);
  const std::string end = GENERATE("shuts down", "is killed", "aborts", "leaves");
  inproc::Group group(std::vector<int>{0, 1, 1});
  std::latch has_lasted(3);  // much longer than an operation may wait
  run_ranks(3, [&](int rank) {
    Config config = test_config();
    config.shutdown_timeout_s = 0.0;
    config.stall_warn_s = 0.05;
    config.stall_abort_s = 0.1;
    RuntimeOptions options = options_of(group, rank, config);
    bool is_told = false;
    options.on_stall = [&](const std::vector<StalledOperation>& stalled) {
      const StalledOperation& wait = stalled.at(0);
      const bool is_whole =
          wait.text == "shutdown()" && ranks_in(wait.missing_ranks) == std::vector{worker};
      if (is_told || !is_whole || wait.waiting < std::chrono::milliseconds(400)) return;
      is_told = true;
      has_lasted.count_down();
    };
    Runtime runtime(std::move(options));
    if (rank == worker) {
      has_lasted.wait();
      if (end == "is killed") return group.kill(rank);
      if (end == "aborts") return runtime.abort("enough");
      if (end == "leaves") return static_cast<void>(runtime.leave());
    }
    if (end == "shuts down") {
      runtime.shutdown();
      // A wait of at least 0.4 s that spun would have made many more.
      check(counter_of(runtime, "coordinator", "cycles") < 2000, "it slept");
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    check_equal(death_of([&] { runtime.shutdown(); }).rank, worker, "who is named");
    check(std::chrono::steady_clock::now() - begin < std::chrono::seconds(15), "in time");
  });
}

TEST_CASE("a rank that leaves in order cuts nothing short that all have agreed on") {
  const std::vector<int> hosts = GENERATE(std::vector{0, 0, 0}, std::vector{0, 1, 1});
  FaultyGroup all(hosts);
  all.faults[2]->hold_ends();
  run_ranks(3, [&](int rank) {
    Config config = test_config();
    config.stall_warn_s = 0.02;
    RuntimeOptions options = all.options(rank, config);
    options.on_stall = [&](const std::vector<StalledOperation>& stalled) {
      for (const StalledOperation& each : stalled) {
        // That rank 1 has left is known by now.
        if (each.text == "the end of the last operations") all.faults[2]->release();
      }
    };
    Runtime runtime(std::move(options));
    std::vector<float> values(3, 1.0F), more(3, 1.0F);
    const Work agreed = runtime.submit(sum_request(values, "x"));
    all.faults[static_cast<std::size_t>(rank)]->wait_begun(1);
    const Death death = death_of([&] {
      if (rank == 1) return runtime.shutdown();
      runtime.submit(sum_request(more, "y")).wait();
    });
    check(death.rank == 1, "who left");
    check_contains(death.text, "rank 1 called shutdown() while");
    agreed.wait();
    check(values[2] == 3.0F, "the sum");
  });
}

TEST_CASE("a rank that does not shut down is named when the time is up") {
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

TEST_CASE("the limit of one call of shutdown counts for all, in place of the variable") {
  const int absent = GENERATE(0, 1, 2);
  const int patient = (absent + GENERATE(1, 2)) % 3;
  const int hasty = 3 - absent - patient;
  const inproc::Group group(kLeaderAndOne);
  Config config = test_config();
  config.shutdown_timeout_s = 1e6;
  config.stall_warn_s = 0.05;
  std::latch over(2);
  std::atomic<bool> one_waits{false};
  const auto deaths = on_each_rank(3, [&](int rank) {
    RuntimeOptions options = options_of(group, rank, config);
    options.on_stall = [&](const std::vector<StalledOperation>& stalled) {
      if (ranks_in(stalled.at(0).submitted_ranks) == std::vector{patient}) one_waits = true;
      one_waits.notify_all();
    };
    Runtime runtime(std::move(options));
    if (rank == absent) {
      over.wait();
      return death_in_barrier(runtime);
    }
    if (rank == hasty) one_waits.wait(false);
    const auto limit = std::chrono::milliseconds(rank == hasty ? 100 : 0);
    const Death death = death_of([&] { runtime.shutdown(limit); });
    over.count_down();
    return death;
  });
  check_same_death(
      deaths, absent,
      {"rank " + std::to_string(absent) + " did not call shutdown() within the limit"});
}

TEST_CASE("ranks that all shut down in time end well, whatever their limits") {
  run_on(kLeaderAndOne, [](int rank, Runtime& runtime) {
    if (rank == 0) return runtime.shutdown(std::chrono::nanoseconds::max());
    runtime.shutdown(std::chrono::seconds(20 * rank));
  });
}

TEST_CASE("a last operation that does not end fails the shutdown when its time is up") {
  const FaultyGroup all(2);
  all.faults[1]->hold_starts();
  Config config = test_config();
  config.shutdown_timeout_s = 5.0;
  std::latch begun(2);
  const std::vector<Death> deaths = on_each_rank(2, [&](int rank) {
    Runtime runtime(all.options(rank, config));
    std::vector<float> values(4, 1.0F);
    const Work work = runtime.submit(sum_request(values, "x"));
    all.faults[static_cast<std::size_t>(rank)]->wait_begun(1);
    begun.arrive_and_wait();
    return death_of([&] { runtime.shutdown(); });
  });
  // Rank 0 waits within the operation for rank 1.
  check_same_death(deaths, 0, {"ranks 0,1 did not finish the last operations and shut down"});
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

TEST_CASE("a death fails the shutdown unless the program knows that something is wrong") {
  const std::string knows_by = GENERATE("nothing", "a wait", "its own error", "leaving itself");
  const inproc::Group group(2);
  std::latch submitted(1);
  run_ranks(2, [&](int rank) {
    Runtime runtime(options_of(group, rank));
    if (rank == 1) return submitted.wait();  // and leaves
    std::vector<float> values(3, 1.0F);
    Work work = runtime.submit(sum_request(values, "x"));
    submitted.count_down();
    while (!runtime.failure()) std::this_thread::yield();
    if (knows_by == "a wait") check(death_of([&] { work.wait(); }).rank == 1, "the wait tells");
    if (knows_by == "leaving itself") runtime.leave();
    work = Work();
    const auto end = [&] { runtime.shutdown(); };
    if (knows_by == "nothing") check(death_of(end).rank == 1, "the shutdown tells");
    if (knows_by != "its own error") return end();
    try {
      throw std::runtime_error("its own");
    } catch (const std::runtime_error&) {
      end();
    }
  });
}

TEST_CASE("a rank that leaves, in a callback too, ends its waits and is named on all") {
  const std::string where = GENERATE("a wait", "a shutdown", "a callback");
  const std::string how = where == "a shutdown"
                              ? " left before its ronde::shutdown() was over: enough"
                              : " left without calling ronde::shutdown(): enough";
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
          runtime.leave("enough");
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
        check(runtime.leave("enough"), "not by agreement");
        blocked.join();
        check(runtime.leave(), "nor later");
      }
      check(death.rank == leaver, "who left");
      check_contains(death.text, "rank " + std::to_string(leaver) + how);
    });
  }
}
