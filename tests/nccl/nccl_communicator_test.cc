// SPDX-License-Identifier: Apache-2.0
// A communicator over an NCCL that is a fake: what blocks, fails or hangs is ended in time.
#include "backends/nccl/communicator.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "backends/gpu/driver/device_context.h"
#include "tests/support/fakes/fake_nccl.h"

namespace {

using namespace ronde::nccl;
using namespace std::chrono_literals;
using Catch::Contains;
using ronde::test::FakeCuda;
using ronde::test::FakeNccl;

BlockingCommunicator::Clock::time_point in(std::chrono::milliseconds time) {
  return BlockingCommunicator::Clock::now() + time;
}

struct Fixture {
  FakeCuda cuda;
  FakeNccl nccl{cuda, {}};
  std::shared_ptr<const NcclApi> api = load_nccl(nccl.lookup()).api;
  const std::shared_ptr<const ronde::cuda::DeviceContext> context =
      std::make_shared<ronde::cuda::DeviceContext>(cuda.api(), 0);
  ronde::cuda::Current current{*context};
  BlockingCommunicator communicator{api, context, 1};
};

TEST_CASE_METHOD(Fixture,
                 "an nccl communicator is closed once it is done, and nobody asks it then") {
  communicator.connect({}, 0);
  CHECK(nccl.live().communicators == 1);
  communicator.watch("reducing");
  communicator.close();
  CHECK(nccl.live().communicators == 0);
  nccl.break_down(kRemoteError);
  communicator.watch("reducing");
  CHECK_THROWS_WITH(communicator.handle("reducing"), Contains("was aborted"));
  CHECK(communicator.abort(in(0ms)));
  CHECK(cuda.calls("ncclCommAbort") == 0);
  CHECK(nccl.misuses().empty());
}

TEST_CASE_METHOD(Fixture, "nccl that connects when nobody waits any more is aborted by itself") {
  CHECK(communicator.abort(in(0ms)));
  CHECK_THROWS_WITH(communicator.connect({}, 0), Contains("it was aborted"));
  CHECK(cuda.calls("ncclCommAbort") == 1);
  CHECK(nccl.live().communicators == 0);
}

TEST_CASE_METHOD(Fixture, "nccl tasks run one by one, report what they throw, and are dropped") {
  const auto run = [&](std::function<void()> task) {
    communicator.start(std::move(task));
    while (!communicator.poll()) std::this_thread::yield();
  };
  std::promise<void> begins, continues;
  std::vector<int> ran;
  communicator.start([&] {
    begins.set_value();
    continues.get_future().wait();
    ran.push_back(1);
  });
  begins.get_future().wait();
  CHECK_FALSE(communicator.poll());
  continues.set_value();
  while (!communicator.poll()) std::this_thread::yield();
  CHECK_THROWS_WITH(run([] { throw std::runtime_error("two"); }), "two");
  run([&] { ran.push_back(3); });
  communicator.abort(in(0ms));
  communicator.start([&] { ran.push_back(4); });
  CHECK(communicator.is_idle(in(60s)));
  CHECK_FALSE(communicator.poll());
  CHECK(ran == std::vector{1, 3});
}

}  // namespace
