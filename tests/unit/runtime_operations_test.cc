// SPDX-License-Identifier: Apache-2.0
// Operations on whole runtimes that go well, or fail alone while the job goes on.
#include <atomic>
#include <catch2/catch.hpp>
#include <latch>
#include <thread>

#include "ronde/error.h"
#include "tests/support/ranks.h"
#include "tests/support/requests.h"
#include "tests/unit/faulty_group.h"
#include "tests/unit/goes_on.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using std::chrono::milliseconds;

}  // namespace

TEST_CASE("a leader speaks for all ranks of its host") {
  constexpr int kRounds = 50;
  const inproc::Group group(std::vector<int>{0, 1, 1, 1});
  std::vector<std::uint64_t> announced(4);
  std::uint64_t received = 0;
  std::uint64_t combined = 0;
  run_ranks(4, [&](int rank) {
    Runtime runtime(options_of(group, rank));
    for (int round = 0; round < kRounds; ++round) {
      std::vector<float> values(3, 1.0F);
      runtime.submit(sum_request(values, "x")).wait();
      check(values[2] == 4.0F, "the sum");
    }
    announced[static_cast<std::size_t>(rank)] =
        counter_of(runtime, "coordinator", "ready_messages");
    if (rank == 0) received = counter_of(runtime, "inproc transport", "messages_received");
    if (rank == 1) combined = counter_of(runtime, "combining", "combined");
    runtime.shutdown();
  });
  CHECK(combined > 0);
  CHECK(received < announced[1] + announced[2] + announced[3]);
}

TEST_CASE("only an operation that tells its progress is polled with pauses") {
  const bool tells = GENERATE(false, true);
  constexpr std::uint64_t kEnough = 20;
  FaultyGroup faulty(1);
  Faults& faults = *faulty.faults[0];
  faults.change_capabilities([=](Capabilities& own) { own.tells_progress = tells; });
  faults.hold_ends();
  Runtime runtime(faulty.options(0));
  std::vector<float> values(2, 1.0F);
  const Work work = runtime.submit(sum_request(values, "x"));
  faults.wait_begun(1);
  const auto sleeps = [&] { return counter_of(runtime, "coordinator", "sleeps"); };
  const std::uint64_t sleeps_before = sleeps();
  const std::uint64_t polls_before = faults.polls();
  while (faults.polls() < polls_before + kEnough || (tells && sleeps() < sleeps_before + kEnough)) {
    std::this_thread::yield();
  }
  if (!tells) CHECK(sleeps() == sleeps_before);
  faults.release();
  work.wait();
  runtime.shutdown();
}

TEST_CASE("a name in flight cannot be used again, and can once it is done") {
  const auto request_of = [](Collective kind, std::vector<float>& in, std::vector<float>& out) {
    Request request = sum_request(in, "x");
    request.kind = kind;
    request.output = out.data();
    return request;
  };
  struct Row {
    Collective kind;
    std::vector<float> result;  ///< on both ranks, of ones on rank 0 and twos on rank 1
  };
  const std::vector<Row> rows = {
      {Collective::Allreduce, {3, 3, 0, 0}},     {Collective::Allgather, {1, 1, 2, 2}},
      {Collective::Broadcast, {1, 1, 0, 0}},     {Collective::Alltoall, {1, 2, 0, 0}},
      {Collective::Reducescatter, {3, 0, 0, 0}},
  };
  for (const Row& row : rows) {
    std::latch refused(1);
    run_group(2, [&](int rank, Runtime& runtime) {
      std::vector<float> in(2, rank == 0 ? 1.0F : 2.0F);
      std::vector<float> out(4);
      if (rank == 1) refused.wait();
      const Work work = runtime.submit(request_of(row.kind, in, out));
      if (rank == 0) {
        std::vector<float> others(4);
        for (const Row& second : rows) {
          const std::string text =
              text_of<UsageError>([&] { runtime.submit(request_of(second.kind, others, others)); });
          check_contains(text, "'x' is still in flight");
        }
        refused.count_down();
      }
      work.wait();
      check(out == row.result, "the first one's result");
      out.assign(4, 0.0F);
      runtime.submit(request_of(row.kind, in, out)).wait();
      check(out == row.result, "and again");
    });
  }
}

TEST_CASE("a name is free again in the callback of its end") {
  run_group(2, [](int, Runtime& runtime) {
    std::vector<float> values(1, 1.0F);
    std::latch resubmitted(1);
    Work second;
    runtime.submit(sum_request(values, "x")).on_done([&] {
      second = runtime.submit(sum_request(values, "x"));
      resubmitted.count_down();
    });
    resubmitted.wait();
    second.wait();
    check(values[0] == 4.0F, "both sums were done");
  });
}

TEST_CASE("without a cache every operation is negotiated in full") {
  Config config = test_config();
  config.cache_capacity = 0;
  run_group(
      2,
      [](int, Runtime& runtime) {
        for (int step = 0; step < 5; ++step) check_goes_on(runtime);
        check(counter_of(runtime, "response_cache", "hits") == 0, "nothing is cached");
      },
      config);
}

TEST_CASE("an operation that one rank submits much later than the others") {
  std::latch others_wait(2);
  run_group(3, [&](int rank, Runtime& runtime) {
    std::vector<float> values(2, 1.0F);
    if (rank == 1) others_wait.wait();
    const Work work = runtime.submit(sum_request(values, "x"));
    if (rank != 1) {
      check(!work.wait_for(milliseconds(1)), "not before rank 1 has submitted its part");
      check(!work.done(), "not done yet");
      others_wait.count_down();
    }
    work.wait();
    check(values[0] == 3.0F, "an early wait_for harms nothing");
  });
}

TEST_CASE("operations fuse up to the fusion limit") {
  Config config = test_config();
  config.fusion_bytes = 256;
  config.cycle_time_ms = 10000.0;  // gather until the buffer is full, or somebody waits
  run_group(
      2,
      [](int, Runtime& runtime) {
        std::vector<std::vector<float>> tensors(8, std::vector<float>(16, 1.0F));
        std::vector<Work> works;
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          works.push_back(runtime.submit(sum_request(tensors[i], "t" + std::to_string(i))));
        }
        for (const Work& work : works) work.wait();
        check(counter_of(runtime, "execution", "largest_bucket_bytes") <= 256, "the limit holds");
        check(counter_of(runtime, "execution", "fused_tensors") > 0, "tensors were fused");
        check(counter_of(runtime, "execution", "tensors") == 8, "every tensor was moved");
      },
      config);
}

TEST_CASE("an operation whose timeout passes fails alone, also on the rank that comes late") {
  std::latch expired(2);
  std::vector<std::string> texts(3);
  run_group(3, [&](int rank, Runtime& runtime) {
    std::vector<float> values(2, 1.0F);
    Request request = sum_request(values, "x");
    if (rank == 0) request.timeout = milliseconds(20);
    if (rank == 2) expired.wait();
    texts[static_cast<std::size_t>(rank)] = usage_error_of(runtime.submit(request));
    if (rank != 2) expired.count_down();
    check(values[0] == 1.0F, "nothing was done");
    check_goes_on(runtime);
    runtime.submit(sum_request(values, "x")).wait();
    check(values[0] == 3.0F, "the name is as new");
  });
  CHECK_THAT(texts[0], Catch::Contains("allreduce 'x' timed out on rank 0"));
  CHECK_THAT(texts[0], Catch::Contains("rank 2"));
  CHECK(texts[1] == texts[0]);
  CHECK(texts[2] == texts[0]);
}

TEST_CASE("a timeout that the clock cannot hold never passes") {
  run_group(2, [](int, Runtime& runtime) {
    std::vector<float> values(1, 1.0F);
    Request request = sum_request(values, "x");
    request.timeout = std::chrono::nanoseconds::max();
    runtime.submit(request).wait();
    check(values[0] == 2.0F, "the sum");
  });
}

TEST_CASE("a finished operation has its error or none, and calls back") {
  run_group(2, [](int rank, Runtime& runtime) {
    std::vector<float> values(2, 1.0F);
    std::latch called(1);
    const Work good = runtime.submit(sum_request(values, "good"));
    good.on_done([&] { called.count_down(); });
    called.wait();
    check(good.done() && good.error() == nullptr, "success");
    Request request = sum_request(values, "bad");
    if (rank == 1) request.shape = {1, 2};
    std::latch failed(1);
    const Work bad = runtime.submit(request);
    bad.on_done([&] { failed.count_down(); });
    failed.wait();
    check(bad.error() != nullptr, "failure");
  });
}

TEST_CASE("a dropped handle keeps its buffers alive until the end, no longer") {
  run_group(2, [](int, Runtime& runtime) {
    auto values = std::make_shared<std::vector<float>>(4, 1.0F);
    const std::weak_ptr<std::vector<float>> observed = values;
    Request request = sum_request(*values, "x");
    bool summed = false;
    request.finish = [&summed, data = values->data()] { summed = data[3] == 2.0F; };
    request.keep_alive = std::move(values);
    runtime.submit(std::move(request));
    runtime.submit(barrier_request()).wait();
    check_goes_on(runtime);
    check(summed, "the sum was done in live memory");
    check(observed.expired(), "the memory is released");
  });
}

TEST_CASE("what owns the buffers is released before the operation counts as done") {
  run_group(2, [](int, Runtime& runtime) {
    for (int step = 0; step < 20; ++step) {
      auto values = std::make_shared<std::vector<float>>(4, 1.0F);
      const std::weak_ptr<std::vector<float>> observed = values;
      Request request = sum_request(*values, "x");
      request.keep_alive = std::move(values);
      runtime.submit(std::move(request)).wait();
      check(observed.expired(), "released");
    }
  });
}

TEST_CASE("a rank without a contribution receives the sum of the others") {
  run_group(3, [](int rank, Runtime& runtime) {
    for (int step = 0; step < 4; ++step) {
      std::vector<float> values(2, 5.0F);
      Request request = sum_request(values, "x");
      request.contributes = rank != step % 3;
      if (step == 3) request.op = ReduceOp::Average;
      const Work work = runtime.submit(request);
      work.wait();
      check(work.contributed(), "somebody contributed");
      check(values[0] == (step == 3 ? 10.0F / 3.0F : 10.0F), "the sum of the other two");
    }
  });
}

TEST_CASE("if no rank contributes the output stays as it was") {
  run_group(2, [](int, Runtime& runtime) {
    for (int step = 0; step < 3; ++step) {
      std::vector<float> values(2, 5.0F);
      bool finished = false;
      Request request = sum_request(values, step == 2 ? "" : "x");
      request.contributes = false;
      request.finish = [&] { finished = true; };
      const Work work = runtime.submit(request);
      work.wait();
      check(!work.contributed(), "nobody contributed");
      check(values[0] == 5.0F && !finished, "untouched");
    }
    check_goes_on(runtime);
  });
}

TEST_CASE("what finish throws fails the operation on its rank alone") {
  run_group(2, [](int rank, Runtime& runtime) {
    std::vector<float> values(2, 1.0F);
    Request request = sum_request(values, "x");
    if (rank == 1) request.finish = [] { throw UsageError("finish failed"); };
    const Work work = runtime.submit(request);
    if (rank == 1) {
      check(usage_error_of(work) == "finish failed", "the error of finish");
    } else {
      work.wait();
    }
    check_goes_on(runtime);
  });
}

TEST_CASE("a result without elements that cannot be allocated fails on its rank alone") {
  run_group(2, [](int rank, Runtime& runtime) {
    Request request;
    request.kind = Collective::Allgather;
    request.shape = {0, 2};
    request.allocate_output = [rank](const std::vector<std::int64_t>&) -> void* {
      if (rank == 1) throw UsageError("no memory");
      return nullptr;
    };
    const Work work = runtime.submit(request);
    if (rank == 1) {
      check(usage_error_of(work) == "no memory", "the error of the allocation");
    } else {
      work.wait();
    }
    check_goes_on(runtime);
  });
}

TEST_CASE("two groups live in one process at once") {
  run_ranks(2, [](int group) {
    run_group(group + 2, [group](int, Runtime& runtime) {
      for (int step = 0; step < 10; ++step) {
        std::vector<float> ones(1, 1.0F);
        runtime.submit(sum_request(ones, "x")).wait();
        check(ones[0] == static_cast<float>(group + 2), "a sum over its own group");
      }
    });
  });
}

TEST_CASE("counters are readable from any thread, during the run and after it") {
  const inproc::Group group(2);
  run_ranks(2, [&](int rank) {
    Runtime runtime(options_of(group, rank));
    std::atomic<bool> stop{false};
    std::thread reader([&] {
      while (!stop) static_cast<void>(runtime.stats());
    });
    for (int step = 0; step < 20; ++step) check_goes_on(runtime);
    runtime.shutdown();
    stop = true;
    reader.join();
    check(counter_of(runtime, "execution", "tensors") == 20, "the last counts stay");
    check(counter_of(runtime, "submission", "operations") == 20, "the last counts stay");
  });
}

TEST_CASE("an allgather whose input lies at another rank's place in the output loses nothing") {
  Config config = test_config();
  config.fusion_bytes = 256;  // many chunks: the first ones overwrite the input
  run_group(
      3,
      [](int rank, Runtime& runtime) {
        std::vector<float> values(3 * 500);
        std::fill_n(values.begin(), 500, static_cast<float>(rank + 1));
        Request request;
        request.kind = Collective::Allgather;
        request.name = "gathered";
        request.shape = {500};
        request.input = request.output = values.data();
        runtime.submit(request).wait();
        for (std::size_t i = 0; i < values.size(); ++i) {
          check(values[i] == static_cast<float>(i / 500 + 1), "element " + std::to_string(i));
        }
      },
      config);
}
