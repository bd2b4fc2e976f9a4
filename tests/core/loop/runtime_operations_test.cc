// SPDX-License-Identifier: Apache-2.0
// Operations on whole runtimes that go well, or fail alone while the job goes on.
#include <sys/eventfd.h>

#include <catch2/catch.hpp>
#include <latch>

#include "core/src/base/system.h"
#include "tests/support/ranks/faulty_group.h"
#include "tests/support/ranks/goes_on.h"
#include "tests/support/ranks/results_of_ranks.h"

using namespace ronde;
using namespace ronde::test;
using std::chrono::milliseconds;

namespace {

/// An operation of a rank that is alone, which does not end before end(). `is_awaited`: a thread
/// waits for it from the start, and runs the loop for a while.
class HeldOperation {
 public:
  explicit HeldOperation(Waiting waiting, int descriptor = -1, bool is_awaited = false) {
    faults.change_capabilities([=](Capabilities& own) { own.waiting = waiting; });
    faults.sleep_on(descriptor);
    faults.hold_ends();
    runtime_.emplace(group_.options(0));
    while (sleeps() == 0) std::this_thread::yield();
    if (is_awaited) {
      caller_ = std::thread([this] { runtime_->run(sum_request(values_, "x")); });
    } else {
      work_ = runtime_->submit(sum_request(values_, "x"));
    }
    faults.wait_begun(1);
  }

  std::uint64_t sleeps() const { return counter_of(*runtime_, "coordinator", "sleeps"); }
  void end() {
    faults.release();
    if (caller_.joinable()) {
      caller_.join();
    } else {
      work_.wait();
    }
    runtime_->shutdown();
  }

 private:
  FaultyGroup group_{1};

 public:
  Faults& faults = *group_.faults[0];

 private:
  std::vector<float> values_ = {1.0F, 1.0F};
  std::optional<Runtime> runtime_;
  Work work_;
  std::thread caller_;
};

}  // namespace

TEST_CASE("a leader announces for all ranks of its host") {
  std::atomic<std::uint64_t> announced{0}, received{0}, combined{0};
  run_on({0, 1, 1, 1}, [&](int rank, Runtime& runtime) {
    for (int round = 0; round < 50; ++round) check_goes_on(runtime);
    if (rank == 0) received = counter_of(runtime, "inproc transport", "messages_received");
    if (rank == 1) combined = counter_of(runtime, "combining", "combined");
    if (rank > 0) announced += counter_of(runtime, "coordinator", "ready_messages");
  });
  CHECK(combined > 0);
  CHECK(received < announced);
}

TEST_CASE("only an operation that reports its progress is polled with pauses") {
  const bool tells = GENERATE(false, true);
  constexpr std::uint64_t kEnough = 20;
  HeldOperation held(tells ? Waiting::Pause : Waiting::Poll);
  const std::uint64_t sleeps_before = held.sleeps();
  const std::uint64_t polls_before = held.faults.polls();
  while (held.faults.polls() < polls_before + kEnough ||
         (tells && held.sleeps() < sleeps_before + kEnough)) {
    std::this_thread::yield();
  }
  if (!tells) CHECK(held.sleeps() == sleeps_before);
  held.end();
}

TEST_CASE("a rank sleeps until the descriptor of its backend is readable") {
  constexpr std::uint64_t kMany = 1000;
  const UniqueFd descriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  const bool is_awaited = GENERATE(false, true);
  HeldOperation held(Waiting::Descriptor, descriptor.get(), is_awaited);
  // While nothing comes, it sleeps for so long that many polls would exceed the case's deadline.
  const std::uint64_t sleeps_before = held.sleeps();
  while (held.sleeps() < sleeps_before + 3) std::this_thread::yield();
  REQUIRE(::eventfd_write(descriptor.get(), 1) == 0);
  const std::uint64_t polls_before = held.faults.polls();
  while (held.faults.polls() < polls_before + kMany) std::this_thread::yield();
  held.end();
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

TEST_CASE("operations fuse up to the fusion limit") {
  Config config = test_config();
  config.fusion_bytes = 256;
  config.cycle_time_ms = 10000.0;  // gather until the buffer is full, or somebody waits
  const auto body = [](int, Runtime& runtime) {
    std::vector<std::vector<float>> tensors(8, std::vector<float>(16, 1.0F));
    std::vector<Work> works;
    for (auto& tensor : tensors) {
      works.push_back(runtime.submit(sum_request(tensor, "t" + std::to_string(works.size()))));
    }
    for (const Work& work : works) work.wait();
    check(counter_of(runtime, "execution", "largest_bucket_bytes") <= 256, "the limit holds");
    check(counter_of(runtime, "execution", "fused_tensors") > 0, "tensors were fused");
    check(counter_of(runtime, "execution", "tensors") == 8, "every tensor was moved");
    check(counter_of(runtime, "submission", "bytes") == 8 * 64, "of the program");
  };
  run_group(2, body, config);
}

TEST_CASE("an operation whose timeout passes fails alone, also on the late rank") {
  std::latch expired(2);
  const inproc::Group group(3);
  const auto texts = on_each_rank(3, [&](int rank) {
    Runtime runtime(options_of(group, rank));
    std::vector<float> values(2, 1.0F);
    Request request = sum_request(values, "x");
    if (rank == 0) request.timeout = milliseconds(20);
    Work work;
    if (rank == 1) work = runtime.submit(request);
    // Once this is over, rank 0 has heard of what rank 1 submitted before.
    runtime.run(barrier_request());
    if (rank == 2) expired.wait();
    if (rank != 1) work = runtime.submit(request);
    const std::string text = usage_error_of(work);
    check_equal(missing_ranks_of(work), std::vector{2}, "who was late");
    if (rank != 2) expired.count_down();
    check(values[0] == 1.0F, "nothing was done");
    check_goes_on(runtime);
    request.timeout = std::chrono::nanoseconds::max();  // it never passes
    runtime.submit(request).wait();
    check(values[0] == 3.0F, "the name is as new");
    runtime.shutdown();
    return text;
  });
  CHECK_THAT(texts[0],
             Catch::Contains("allreduce 'x' timed out on rank 0") && Catch::Contains("rank 2"));
  CHECK(texts[1] == texts[0]);
  CHECK_THAT(texts[2], Catch::Contains("allreduce 'x' timed out on rank 0") &&
                           Catch::Contains("not been submitted by rank 2; raise its timeout"));
}

TEST_CASE("what owns the buffers is released before the operation counts as done, not earlier") {
  run_group(2, [](int, Runtime& runtime) {
    for (int step = 0; step < 20; ++step) {
      auto values = std::make_shared<std::vector<float>>(4, 1.0F);
      const std::weak_ptr<std::vector<float>> observed = values;
      bool summed = false;
      Request request = sum_request(*values, "x");
      request.finish = [&summed, data = values->data()] { summed = data[3] == 2.0F; };
      request.keep_alive = std::move(values);
      if (step % 2 == 0) {
        runtime.submit(std::move(request)).wait();
      } else {
        runtime.submit(std::move(request));  // the handle is dropped
        runtime.submit(barrier_request()).wait();
        check_goes_on(runtime);
      }
      check(summed, "the sum was done in live memory");
      check(observed.expired(), "the memory is released");
    }
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
  const auto body = [](int rank, Runtime& runtime) {
    std::vector<float> values(3 * 500);
    std::fill_n(values.begin(), 500, static_cast<float>(rank + 1));
    Request request = sum_request(values, "gathered");
    request.kind = Collective::Allgather;
    request.shape = {500};
    runtime.submit(request).wait();
    for (std::size_t i = 0; i < values.size(); ++i) {
      check(values[i] == static_cast<float>(i / 500 + 1), "element " + std::to_string(i));
    }
  };
  run_group(3, body, config);
}
