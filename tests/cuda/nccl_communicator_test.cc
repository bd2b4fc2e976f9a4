// SPDX-License-Identifier: Apache-2.0
// A communicator over an NCCL that is a fake: what is late, fails or hangs ends in time.
#include "backends/nccl/communicator.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "backends/cuda/device_context.h"
#include "fake_nccl.h"

namespace {

using namespace ronde::nccl;
using namespace std::chrono_literals;
using Catch::Contains;
using ronde::test::FakeCuda;
using ronde::test::FakeNccl;

NonBlockingCommunicator::Clock::time_point in(std::chrono::milliseconds time) {
  return NonBlockingCommunicator::Clock::now() + time;
}

struct Fixture {
  static constexpr int kLooks = 3;  ///< before a call is over

  FakeCuda cuda;
  FakeNccl nccl{cuda, {.looks = kLooks}};
  std::shared_ptr<const NcclApi> api = load_nccl(nccl.lookup()).api;
  ronde::cuda::DeviceContext context{cuda.api(), 0};
  ronde::cuda::Current current{context};

  /// Waits until all `size` ranks are there; there is one, whatever the size.
  std::unique_ptr<NonBlockingCommunicator> connected(int size = 1,
                                                     std::chrono::milliseconds patience = 60s) {
    auto communicator =
        std::make_unique<NonBlockingCommunicator>(api, UniqueId{}, size, 0, in(patience));
    while (!communicator->is_connected()) std::this_thread::yield();
    return communicator;
  }

  /// A call that goes on in NCCL's threads.
  void check_goes_on(const NonBlockingCommunicator& communicator, Result result) {
    communicator.check("a call", result, "registering");
    for (int look = 0; look < kLooks; ++look) CHECK_FALSE(communicator.is_issued("registering"));
    CHECK(communicator.is_issued("registering"));
  }
};

TEST_CASE_METHOD(Fixture, "an nccl communicator does not block, and is closed once it is done") {
  NonBlockingCommunicator communicator(api, {}, 1, 0, in(60s));
  for (int look = 0; look < kLooks; ++look) CHECK_FALSE(communicator.is_connected());
  CHECK(communicator.is_connected());
  CHECK(nccl.live().communicators == 1);
  CHECK(communicator.is_issued("reducing"));
  void* registered = nullptr;
  check_goes_on(communicator,
                api->register_memory(communicator.handle(), &context, 8, &registered));
  check_goes_on(communicator, api->deregister_memory(communicator.handle(), registered));
  CHECK(communicator.is_open());
  communicator.close(in(60s));
  CHECK(nccl.live().communicators == 0);
  CHECK_FALSE(communicator.is_open());
  // Nobody is asked any more.
  nccl.break_down(kRemoteError);
  CHECK(communicator.is_issued("reducing"));
  CHECK(cuda.calls("ncclCommAbort") == 0);
  CHECK(nccl.misuses().empty());
}

TEST_CASE_METHOD(Fixture,
                 "nccl whose ranks do not all come is aborted at the deadline, or before") {
  CHECK_THROWS_WITH(
      connected(4, 20ms),
      "NCCL failed while connecting 4 ranks: not all of the 4 ranks have come in time");
  CHECK(nccl.live().communicators == 0);
  CHECK(cuda.calls("ncclCommAbort") == 1);
  {
    const NonBlockingCommunicator given_up(api, {}, 4, 1, in(60s));
    CHECK_FALSE(given_up.is_connected());
  }
  CHECK(nccl.live().communicators == 0);
  CHECK(cuda.calls("ncclCommAbort") == 2);
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
  try {
    static_cast<void>(communicator->is_issued("reducing 3 tensors"));
    FAIL("it did not throw");
  } catch (const NcclError& error) {
    CHECK(error.result() == kRemoteError);
    CHECK_THAT(error.what(), Contains("ncclCommGetAsyncError"));
  }
}

TEST_CASE_METHOD(Fixture, "nccl's abort may hang: it ends at its bound, and its thread later") {
  std::promise<void> returns;
  nccl.hold_aborts(returns.get_future().share());
  auto communicator = connected();
  CHECK_FALSE(communicator->abort(20ms));
  CHECK_THROWS_WITH(communicator->is_issued("reducing"),
                    "NCCL failed while reducing: it was aborted");
  CHECK(communicator->abort(20ms));  // once is enough
  communicator.reset();
  CHECK(cuda.calls("ncclCommAbort") == 1);
  CHECK(nccl.live().communicators == 1);
  returns.set_value();
  // The thread that was left to itself goes on with the table that it holds.
  while (nccl.live().communicators > 0) std::this_thread::yield();
}

TEST_CASE_METHOD(Fixture, "nccl that does not end what is in progress is not waited for for ever") {
  const auto communicator = connected();
  nccl.lose_a_rank();
  CHECK_THROWS_WITH(
      communicator->close(in(20ms)),
      "NCCL failed while closing a communicator: what is in progress has not ended in time, or not "
      "all ranks close theirs");
}

}  // namespace
