// SPDX-License-Identifier: Apache-2.0
// A communicator over an NCCL that is a fake: what blocks, fails or hangs is ended in time.
#include "backends/nccl/communicator.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "backends/gpu/driver/device_context.h"
#include "backends/nccl/issuing_thread.h"
#include "tests/support/fakes/fake_nccl.h"

namespace {

using namespace ronde::nccl;
using namespace std::chrono_literals;
using Catch::Contains;
using ronde::test::FakeCuda;
using ronde::test::FakeNccl;

IssuingThread::Clock::time_point in(std::chrono::milliseconds time) {
  return IssuingThread::Clock::now() + time;
}

struct Fixture {
  FakeCuda cuda;
  FakeNccl nccl{cuda, {}};
  std::shared_ptr<const NcclApi> api = load_nccl(nccl.lookup()).api;
  ronde::cuda::DeviceContext context{cuda.api(), 0};
  ronde::cuda::Current current{context};

  /// The only one of `size` ranks.
  std::unique_ptr<BlockingCommunicator> connected(int size = 1) {
    auto communicator = std::make_unique<BlockingCommunicator>(api, size);
    communicator->connect({}, 0);
    return communicator;
  }
};

TEST_CASE_METHOD(Fixture,
                 "an nccl communicator is closed once it is done, and nobody asks it then") {
  const auto communicator = connected();
  CHECK(nccl.live().communicators == 1);
  communicator->watch("reducing");
  communicator->close();
  CHECK(nccl.live().communicators == 0);
  nccl.break_down(kRemoteError);
  communicator->watch("reducing");
  CHECK_THROWS_WITH(BlockingCommunicator::Use(*communicator, "reducing"), Contains("was aborted"));
  communicator->begin_abort();
  CHECK(communicator->has_aborted(in(0ms)));
  CHECK(cuda.calls("ncclCommAbort") == 0);
  CHECK(nccl.misuses().empty());
}

TEST_CASE_METHOD(Fixture, "nccl errors are told, those that come later as well") {
  cuda.fail("ncclCommInitRankConfig", kInvalidUsage);
  CHECK_THROWS_WITH(
      connected(),
      "NCCL failed while connecting 1 ranks: ncclCommInitRankConfig: the fake says so (5)");
  CHECK(cuda.calls("ncclCommAbort") == 0);
  const auto communicator = connected();
  CHECK_THROWS_WITH(communicator->check("ncclAllReduce", kInvalidArgument, "reducing 3 tensors"),
                    "NCCL failed while reducing 3 tensors: ncclAllReduce: the fake says so (4)");
  nccl.break_down(kRemoteError);
  CHECK_THROWS_WITH(communicator->watch("reducing 3 tensors"),
                    Contains("ncclCommGetAsyncError: the fake says so (6)"));
}

TEST_CASE_METHOD(Fixture, "nccl's abort may hang: it ends at its bound, and its thread later") {
  std::promise<void> returns;
  nccl.hold_aborts(returns.get_future().share());
  auto communicator = connected();
  communicator->begin_abort();
  CHECK_FALSE(communicator->has_aborted(in(20ms)));
  CHECK_THROWS_WITH(communicator->watch("reducing"), "NCCL failed while reducing: it was aborted");
  CHECK(nccl.live().communicators == 1);
  returns.set_value();
  CHECK(communicator->has_aborted(in(10s)));
  communicator.reset();
  CHECK(cuda.calls("ncclCommAbort") == 1);
  CHECK(nccl.live().communicators == 0);
}

TEST_CASE_METHOD(Fixture, "nccl that connects when nobody waits any more is aborted by itself") {
  BlockingCommunicator communicator(api, 1);
  communicator.begin_abort();
  CHECK_THROWS_WITH(communicator.connect({}, 0), Contains("it was aborted"));
  CHECK(cuda.calls("ncclCommAbort") == 1);
  CHECK(nccl.live().communicators == 0);
}

TEST_CASE("an nccl thread runs tasks in their order, tells what they throw, and drops the rest") {
  IssuingThread thread;
  std::promise<void> begins;
  std::promise<void> goes_on;
  std::vector<int> ran;
  const auto first = thread.submit(IssuingThread::Kind::Work, [&] {
    begins.set_value();
    goes_on.get_future().wait();
    ran.push_back(1);
  });
  const auto second =
      thread.submit(IssuingThread::Kind::Work, [] { throw std::runtime_error("two"); });
  begins.get_future().wait();
  CHECK_FALSE(first->poll());
  goes_on.set_value();
  while (!first->poll()) std::this_thread::yield();
  const auto two = [&] {
    while (!second->poll()) std::this_thread::yield();
  };
  CHECK_THROWS_WITH(two(), "two");
  thread.stop();
  CHECK(thread.has_stopped(in(60s)));
  const auto late = thread.submit(IssuingThread::Kind::Work, [&] { ran.push_back(3); });
  CHECK_FALSE(late->poll());
  CHECK(ran == std::vector{1});
}

TEST_CASE("an nccl thread whose task does not return is not waited for") {
  const auto kind = GENERATE(IssuingThread::Kind::Connect, IssuingThread::Kind::Work);
  auto begins = std::make_shared<std::promise<void>>();
  auto returns = std::make_shared<std::promise<void>>();
  std::future<void> has_begun = begins->get_future();
  std::shared_ptr<Task> task;
  {
    IssuingThread thread;
    task = thread.submit(kind, [begins, until = returns->get_future().share()] {
      begins->set_value();
      until.wait();
    });
    has_begun.wait();
    thread.stop();
    // One that connects touches no tensor.
    CHECK(thread.has_stopped(in(10ms)) == (kind == IssuingThread::Kind::Connect));
  }
  CHECK_FALSE(task->poll());
  returns->set_value();
  while (!task->poll()) std::this_thread::yield();
}

}  // namespace
