// SPDX-License-Identifier: Apache-2.0
#include "ronde/completion_queue.h"

#include <poll.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "core/src/op/work_state.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using std::chrono::nanoseconds;

constexpr nanoseconds kForEver = nanoseconds::max();

std::shared_ptr<WorkState> some_operation() {
  return std::make_shared<WorkState>("allreduce 'x'", std::weak_ptr<WaitHelper>(),
                                     std::make_shared<Logger>(LogLevel::Off));
}

bool is_readable(const CompletionQueue& queue) {
  pollfd asked{.fd = queue.descriptor(), .events = POLLIN, .revents = 0};
  return ::poll(&asked, 1, 0) == 1;
}

}  // namespace

TEST_CASE("tokens come in the order of ends, and the descriptor is readable while there are some") {
  CompletionQueue queue;
  const auto first = some_operation(), second = some_operation();
  queue.add(Work(first), 1);
  queue.add(Work(second), 2);
  queue.add(Work(second), 3);
  CHECK_FALSE(is_readable(queue));
  CHECK(queue.next(nanoseconds(0)) == std::nullopt);
  CHECK(queue.next(std::chrono::milliseconds(1)) == std::nullopt);
  second->complete(std::make_exception_ptr(UsageError("it went wrong")));
  CHECK(is_readable(queue));
  first->complete(nullptr);
  queue.add(Work(), 4);  // is done
  for (const std::uint64_t token : {2U, 3U, 1U, 4U}) {
    CHECK(is_readable(queue));
    CHECK(queue.next(kForEver) == token);
  }
  CHECK_FALSE(is_readable(queue));
  CHECK(queue.next(nanoseconds(-5)) == std::nullopt);
}

TEST_CASE("a queue may end before its works, and a notifier gives its token once") {
  auto queue = std::make_unique<CompletionQueue>();
  const auto operation = some_operation();
  queue->add(Work(operation), 1);
  const std::function<void()> notify = queue->notifier(~std::uint64_t{0});
  notify();
  notify();
  CHECK(queue->next(kForEver) == ~std::uint64_t{0});
  CHECK(queue->next(nanoseconds(0)) == std::nullopt);
  queue.reset();
  operation->complete(nullptr);
  notify();
  CHECK(operation->done());
}

TEST_CASE("each token comes once where many threads wait and add") {
  constexpr std::uint64_t kEach = 200;
  constexpr int kThreads = 3;
  CompletionQueue queue;
  std::vector<std::vector<std::uint64_t>> got(kThreads);
  std::vector<std::shared_ptr<WorkState>> operations;
  for (std::uint64_t i = 0; i < kThreads * kEach; ++i) operations.push_back(some_operation());
  run_ranks(3 * kThreads, [&](int thread) {
    const auto part = static_cast<std::size_t>(thread % kThreads);
    for (std::uint64_t i = part * kEach; i < (part + 1) * kEach; ++i) {
      if (thread < kThreads) got[part].push_back(queue.next(kForEver).value());
      if (thread / kThreads == 1) queue.add(Work(operations[i]), i);
      if (thread / kThreads == 2) operations[i]->complete(nullptr);
    }
  });
  std::vector<std::uint64_t> all, expected(kThreads * kEach);
  for (const auto& of_thread : got) all.insert(all.end(), of_thread.begin(), of_thread.end());
  std::ranges::sort(all);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(all == expected);
}

TEST_CASE("one queue serves several groups, and outlives them") {
  constexpr int kOperations = 20;
  CompletionQueue queue;
  for (std::uint64_t group = 0; group < 2; ++group) {
    run_group(2, [&](int rank, Runtime& runtime) {
      for (int i = 0; i < kOperations; ++i) {
        auto values = std::make_shared<std::vector<float>>(8, 1.0F);
        Request request = sum_request(*values, "");
        request.keep_alive = values;
        if (i == 3) request.refusal = "this rank cannot";
        queue.add(runtime.submit(request), 2 * group + static_cast<std::uint64_t>(rank));
      }
    });
  }
  std::vector<int> counts(4);
  while (const auto token = queue.next(nanoseconds(0))) ++counts.at(*token);
  CHECK(counts == std::vector<int>(4, kOperations));
}
