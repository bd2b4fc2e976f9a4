// SPDX-License-Identifier: Apache-2.0
// Symmetric allreduces end to end. Ranks are threads, each with a Runtime over really shared
// memory.
#include <catch2/catch.hpp>
#include <complex>
#include <latch>

#include "backends/shm/shm.h"
#include "tests/support/processes/file_limit.h"
#include "tests/support/ranks/repeated_steps.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Clock = std::chrono::steady_clock;

RuntimeOptions symmetric_options(const inproc::Group& group, int rank) {
  RuntimeOptions options = options_of(group, rank);
  options.config.cpu_backend = "shm";
  options.config.symmetric_heap_bytes = std::uint64_t{16} << 20;
  options.config.freeze_after_steps = 2;
  options.backends["shm"] = shm_backend_factory();
  return options;
}

void run_symmetric(int size, const std::function<void(int rank, Runtime& runtime)>& body) {
  const inproc::Group group(size);
  run_ranks(size, [&](int rank) {
    Runtime runtime(symmetric_options(group, rank));
    body(rank, runtime);
    runtime.shutdown();
  });
}

/// A rank's buffers in the symmetric heap. Each element of buffer i begins as rank + i + step.
class Buffers {
 public:
  Buffers(Runtime& runtime, int count) : runtime_(runtime), heap_(runtime.symmetric_heap()) {
    check(heap_ != nullptr, "there is a symmetric heap");
    for (int i = 0; i < count; ++i) {
      const std::size_t elements = i % 3 == 0 ? 50'000 : 10 + static_cast<std::size_t>(i);
      const auto offset = heap_->find(elements * sizeof(float));
      check(offset && heap_->reserve(*offset, elements * sizeof(float)), "there is room");
      buffers_.emplace_back(reinterpret_cast<float*>(heap_->own(*offset)), elements);
    }
  }

  int count() const { return static_cast<int>(buffers_.size()); }

  Request request(int i, int step) {
    const std::span<float> buffer = buffers_[static_cast<std::size_t>(i)];
    std::fill(buffer.begin(), buffer.end(),
              static_cast<float>(runtime_.topology().rank + i + step));
    Request request;
    request.name = "b" + std::to_string(i);
    request.shape = {static_cast<std::int64_t>(buffer.size())};
    request.input = request.output = buffer.data();
    request.symmetric = request.lazy = true;
    return request;
  }

  std::vector<Work> submit_all(int step) {
    std::vector<Work> works;
    for (int i = 0; i < count(); ++i) {
      const Request request = this->request(i, step);
      works.push_back(operations_.empty() ? runtime_.submit(request) : start(i, request.output));
    }
    return works;
  }

  /// Starts persistent operations instead of requests from here on.
  void prepare() {
    for (int i = 0; i < count(); ++i) operations_.push_back(runtime_.prepare(request(i, 0)));
  }
  Work start(int i, void* buffer) const {
    return operations_.at(static_cast<std::size_t>(i)).start({.input = buffer, .output = buffer});
  }

  void check_sum(int i, int step) const {
    const int ranks = runtime_.topology().size;
    const auto expected = static_cast<float>(ranks * (ranks - 1) / 2 + ranks * (i + step));
    const std::span<float> buffer = buffers_[static_cast<std::size_t>(i)];
    check(std::all_of(buffer.begin(), buffer.end(), [&](float at) { return at == expected; }),
          "the sum of buffer " + std::to_string(i) + " in step " + std::to_string(step));
  }

  void check_sums(int step) const {
    for (int i = 0; i < count(); ++i) check_sum(i, step);
  }

  void step(int number) {
    for (const Work& work : submit_all(number)) work.wait();
    check_sums(number);
  }

  void freeze() {
    const auto limit = Clock::now() + std::chrono::seconds(60);
    for (int number = 0; schedule_counter(runtime_, "freezes") == 0; ++number) {
      check(Clock::now() < limit, "the ranks repeat themselves, so they freeze");
      step(number);
    }
    step(0);  // decisions in flight have arrived
  }

  std::uint64_t chunks_here() const { return counter_of(runtime_, "shm", "symmetric_chunks_here"); }

 private:
  Runtime& runtime_;
  const std::shared_ptr<SymmetricHeap> heap_;
  std::vector<std::span<float>> buffers_;
  std::vector<PersistentOp> operations_;
};

}  // namespace

TEST_CASE("persistent operations reduce in place in the heap, wherever a start has its buffer") {
  run_symmetric(2, [](int, Runtime& runtime) {
    Buffers buffers(runtime, 7);
    buffers.prepare();
    buffers.freeze();
    for (int step = 0; step < 20; ++step) buffers.step(step);
    // Buffers 0 and 3 are of one size.
    const Request third = buffers.request(3, 5);
    buffers.start(0, third.output).wait();
    buffers.check_sum(3, 5);
    for (int step = 0; step < 20; ++step) buffers.step(step);
    check(counter_of(runtime, "shm", "staged_bytes") == 0, "nothing was staged");
  });
}

TEST_CASE("complex numbers in the heap are scaled, or made neutral, before any rank reduces them") {
  run_symmetric(3, [](int rank, Runtime& runtime) {
    const auto heap = runtime.symmetric_heap();
    const std::size_t bytes = 1000 * sizeof(std::complex<float>);
    const auto offset = heap->find(bytes);
    check(offset && heap->reserve(*offset, bytes), "there is room");
    const std::span buffer(reinterpret_cast<std::complex<float>*>(heap->own(*offset)), 1000);
    for (int step = 0; step < 5; ++step) {
      std::ranges::fill(buffer, std::complex<float>(1.0F, 2.0F));
      Request request;
      request.dtype = DataType::C64;
      request.shape = {1000};
      request.input = request.output = buffer.data();
      request.symmetric = true;
      request.rank_factor = 2.0 * (rank + 1);
      request.contributes = rank != step % 3;
      runtime.run(request);
      const auto factor = static_cast<float>(12 - 2 * (step % 3 + 1));
      check(std::ranges::count(buffer, std::complex<float>(factor, 2 * factor)) == 1000,
            "the sums");
    }
    check_equal(counter_of(runtime, "shm", "symmetric_operations"), 5U, "operations in the heap");
  });
}

TEST_CASE("a rank that waits reduces for those that compute") {
  for (const int ranks : {2, 3}) {
    std::latch submitted(ranks);
    std::latch reduced(1);
    run_symmetric(ranks, [&](int rank, Runtime& runtime) {
      Buffers buffers(runtime, 7);
      buffers.freeze();
      const std::uint64_t chunks = buffers.chunks_here();
      const std::vector<Work> works = buffers.submit_all(5);
      submitted.arrive_and_wait();
      if (rank == 0) {
        for (const Work& work : works) work.wait();
        check(buffers.chunks_here() > chunks, "rank 0 did the work");
        reduced.count_down();
      } else {
        reduced.wait();  // without calling Ronde
        for (const Work& work : works) work.wait();
        check(buffers.chunks_here() == chunks, "of this rank, too");
      }
      buffers.check_sums(5);
      for (int step = 0; step < 20; ++step) buffers.step(step);
      check(counter_of(runtime, "shm", "staged_bytes") == 0, "nothing was staged");
    });
  }
}

TEST_CASE("lazy operations run when they are polled, have a callback, or others are submitted") {
  const std::string how = GENERATE("ask", "callback", "another", "wait for the last");
  CAPTURE(how);
  run_symmetric(2, [&](int, Runtime& runtime) {
    Buffers buffers(runtime, 4);
    std::vector<float> values(100);
    const auto plain = [&](int step) {
      std::fill(values.begin(), values.end(), static_cast<float>(step));
      return runtime.submit(sum_request(values, "plain"));
    };
    const auto limit = Clock::now() + std::chrono::seconds(60);
    for (int step = 0; counter_of(runtime, "schedule", "tensors") < 30; ++step) {
      check(Clock::now() < limit, "the ranks repeat themselves, so they freeze");
      std::vector<Work> works = buffers.submit_all(step);
      std::atomic<int> called{0};
      if (how == "callback") {
        for (const Work& work : works) work.on_done([&called] { ++called; });
        while (called < 4 && Clock::now() < limit) std::this_thread::yield();
        check(called == 4, "every callback ran");
      }
      works.push_back(plain(step));
      if (how == "another") {
        // Nobody waits, and only the last one is asked for, which is not lazy.
        poll_until_done(works.back());
        check(works.front().done(), "what was before it is done");
      }
      if (how == "ask") poll_until_done(works.front());
      if (how == "wait for the last") works.back().wait();
      for (const Work& work : works) work.wait();
      buffers.check_sums(step);
      check(values.front() == static_cast<float>(2 * step), "the plain one's sum");
    }
  });
}

TEST_CASE("lazy operations survive shutdown") {
  run_symmetric(3, [](int, Runtime& runtime) {
    Buffers buffers(runtime, 5);
    buffers.freeze();
    const std::vector<Work> works = buffers.submit_all(7);
    runtime.shutdown();
    for (const Work& work : works) work.wait();
    buffers.check_sums(7);
  });
}

TEST_CASE("ranks that cannot share a board negotiate every step") {
  const FileLimit limit(0);
  const inproc::Group group(2);
  std::atomic<int> warnings = 0;
  run_ranks(2, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    options.make_board = [&](BoardContext& context) {
      context.wake_fd = 0;  // never written to: sharing fails before
      context.warn = [&](const std::string&) { ++warnings; };
      return shm_board_factory()(context);
    };
    Runtime runtime(options);
    for (int step = 0; step < 10; ++step) {
      std::vector<float> values(3, 1.0F);
      runtime.submit(sum_request(values, "x")).wait();
      check(values[2] == 2.0F, "the sum");
    }
    runtime.shutdown();
  });
  CHECK(warnings == 2);
}

TEST_CASE("requests that are not symmetric are refused, and leave buffers unchanged") {
  std::latch submitted(1);
  run_symmetric(2, [&](int rank, Runtime& runtime) {
    Buffers buffers(runtime, 2);
    std::vector<float> elsewhere(10);
    Request outside = sum_request(elsewhere, "outside");
    outside.symmetric = true;
    check_contains(text_of<UsageError>([&] { runtime.submit(outside); }), "'outside'");
    Request wrong_kind = buffers.request(1, 0);
    wrong_kind.kind = Collective::Broadcast;
    text_of<UsageError>([&] { runtime.submit(wrong_kind); });
    Request no_neutral = buffers.request(1, 0);
    no_neutral.op = ReduceOp::Min;
    no_neutral.contributes = false;
    text_of<UsageError>([&] { runtime.submit(no_neutral); });
    // Every rank throws for different offsets.
    Request apart = buffers.request(1, 0);
    if (rank == 1) apart.input = apart.output = static_cast<float*>(apart.output) + 1;
    check_contains(text_of<UsageError>([&] { runtime.run(apart); }), "of the symmetric heap");
    buffers.step(3);
    const Request request = buffers.request(0, 5);
    if (rank == 0) submitted.wait();
    // Rank 1's is still in flight: rank 0 has yet to submit.
    const Work work = runtime.submit(request);
    if (rank == 1) {
      Request silent = request;
      silent.contributes = false;
      text_of<UsageError>([&] { runtime.submit(silent); });
      submitted.count_down();
    }
    work.wait();
    buffers.check_sum(0, 5);
  });
  run_group(2, [](int, Runtime& runtime) {
    check(runtime.symmetric_heap() == nullptr, "the inproc backend has no symmetric heap");
    std::vector<float> values(1);
    Request request = sum_request(values, "x");
    request.symmetric = true;
    text_of<UsageError>([&] { runtime.submit(request); });
  });
}

TEST_CASE("a rank that dies with lazy operations under way is named by those that wait") {
  inproc::Group group(3);
  std::latch submitted(3);
  run_ranks(3, [&](int rank) {
    Runtime runtime(symmetric_options(group, rank));
    Buffers buffers(runtime, 4);
    buffers.freeze();
    const std::vector<Work> works = buffers.submit_all(1);
    submitted.arrive_and_wait();
    if (rank == 2) {
      group.kill(2);
      return;
    }
    const Death death = death_of([&] {
      for (const Work& work : works) work.wait();
      for (int step = 0; step < 1'000'000; ++step) buffers.step(step);
    });
    check(death.rank == 2, "rank 2 is named: " + death.text);
  });
}

namespace {

/// Checks that this rank sleeps repeatedly within ten seconds of beginning its operation in a set.
void check_sleeps_in_operation(const Runtime& runtime) {
  const auto limit = Clock::now() + std::chrono::seconds(10);
  const auto wait_until_above = [&](const char* part, const char* name, std::uint64_t value) {
    while (counter_of(runtime, part, name) <= value && Clock::now() < limit) {
      std::this_thread::yield();
    }
  };
  wait_until_above("shm of set 1", "operations", 0);
  wait_until_above("coordinator", "sleeps", counter_of(runtime, "coordinator", "sleeps") + 20);
  check(Clock::now() < limit, "it slept");
}

}  // namespace

TEST_CASE("a set within one of several hosts sleeps while it waits for a peer in an operation") {
  const inproc::Group group(std::vector<int>{0, 0, 1});
  std::latch is_prepared(1), hangs(1), over(1);
  run_ranks(3, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    options.make_board = shm_board_factory();
    options.backends["shm"] = shm_backend_factory();
    Runtime runtime(std::move(options));
    std::vector<float> values(3, 1.0F), others(3, 1.0F);
    Request within = sum_request(values, "x"), across = sum_request(others, "y");
    if (rank < 2) within.set = runtime.create_process_set({0, 1});
    if (rank > 0) across.set = runtime.create_process_set({1, 2});
    if (rank == 0) {
      hangs.wait();
      const Work work = runtime.submit(within);
      try {
        check_sleeps_in_operation(runtime);
      } catch (...) {
        over.count_down();
        throw;
      }
      over.count_down();
      work.wait();
    } else if (rank == 1) {
      const Work work = runtime.submit(within);
      // Agreed on after x was announced. What it calls, on the loop, keeps this rank out of x.
      runtime.submit(across).on_done([&] {
        hangs.count_down();
        over.wait();
      });
      is_prepared.count_down();
      work.wait();
    } else {
      is_prepared.wait();
      runtime.submit(across).wait();
    }
    check(rank == 2 || values[2] == 2.0F, "the sum");
    runtime.shutdown();
  });
}

TEST_CASE("a symmetric average of integers does not wrap, though it is made beside the buffer") {
  run_symmetric(3, [](int rank, Runtime& runtime) {
    const std::shared_ptr<SymmetricHeap> heap = runtime.symmetric_heap();
    const auto offset = heap->find(4 * sizeof(std::int32_t));
    check(offset && heap->reserve(*offset, 4 * sizeof(std::int32_t)), "there is room");
    const std::span<std::int32_t> buffer(reinterpret_cast<std::int32_t*>(heap->own(*offset)), 4);
    for (int step = 0; step < 8; ++step) {
      std::ranges::fill(buffer, 2'147'483'647 - rank);
      Request request;
      request.name = "average";
      request.dtype = DataType::I32;
      request.op = ReduceOp::Average;
      request.shape = {4};
      request.input = request.output = buffer.data();
      request.symmetric = request.lazy = true;
      request.contributes = rank != 2 || step % 2 == 0;
      runtime.run(std::move(request));
      const std::int32_t expected = step % 2 == 0 ? 2'147'483'646 : 1'431'655'764;
      check(std::ranges::all_of(buffer, [&](int each) { return each == expected; }), "the average");
    }
  });
}
