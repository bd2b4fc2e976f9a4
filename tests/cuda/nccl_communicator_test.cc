// SPDX-License-Identifier: Apache-2.0
// A communicator over an NCCL that is a fake: what is late, fails or hangs ends in time.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "backends/nccl/communicator.h"
#include "tests/support/fake_library.h"

namespace {

using namespace ronde::nccl;
using namespace std::chrono_literals;
using Catch::Contains;
using ronde::test::address;

/// One communicator. NCCL's functions are no members, so there is one of it at a time.
struct FakeNccl {
  std::atomic<int> looks_until_ready{3};
  std::atomic<Result> init_result{kInProgress};
  std::atomic<Result> async_result{kSuccess};
  std::atomic<int> open{0};
  std::atomic<int> aborts{0};
  std::atomic<int> blocking{-1};
  std::shared_future<void> abort_returns;
  static inline FakeNccl* the_one = nullptr;

  FakeNccl() { the_one = this; }
  ~FakeNccl() { the_one = nullptr; }

  Result init(Communicator* communicator, const CommunicatorConfig& config) {
    blocking = config.blocking;
    if (init_result != kSuccess && init_result != kInProgress) return init_result;
    ++open;
    *communicator = reinterpret_cast<Communicator>(this);
    return init_result;
  }
  Result look() {
    if (async_result != kSuccess) return async_result;
    return looks_until_ready-- > 0 ? kInProgress : kSuccess;
  }
  Result abort() {
    ++aborts;
    if (abort_returns.valid()) abort_returns.wait();
    --open;
    return kSuccess;
  }

  std::shared_ptr<const NcclApi> api() const;
};

std::shared_ptr<const NcclApi> FakeNccl::api() const {
  const ronde::test::Functions functions = {
      {"ncclGetVersion", address(+[](int* version) { return *version = 22809, 0; })},
      {"ncclGetErrorString", address(+[](Result) { return "the fake says so"; })},
      {"ncclGetLastError", address(+[](Communicator) { return "last words"; })},
      {"ncclCommInitRankConfig",
       address(+[](Communicator* communicator, int, UniqueId, int, CommunicatorConfig* config) {
         return the_one->init(communicator, *config);
       })},
      {"ncclCommGetAsyncError",
       address(+[](Communicator, Result* result) { return *result = the_one->look(), kSuccess; })},
      {"ncclCommFinalize", address(+[](Communicator) {
         the_one->looks_until_ready = 2;
         return kInProgress;
       })},
      {"ncclCommDestroy", address(+[](Communicator) { return --the_one->open, kSuccess; })},
      {"ncclCommAbort", address(+[](Communicator) { return the_one->abort(); })}};
  return load_nccl(ronde::test::library_with(functions)).api;
}

NonBlockingCommunicator::Clock::time_point in(std::chrono::milliseconds time) {
  return NonBlockingCommunicator::Clock::now() + time;
}

/// Waits until all `size` ranks are there.
std::unique_ptr<NonBlockingCommunicator> connected(const FakeNccl& nccl, int size,
                                                   std::chrono::milliseconds patience) {
  auto communicator =
      std::make_unique<NonBlockingCommunicator>(nccl.api(), UniqueId{}, size, 0, in(patience));
  while (!communicator->is_connected()) std::this_thread::yield();
  return communicator;
}

TEST_CASE("an nccl communicator does not block, and is closed once it is done") {
  FakeNccl nccl;
  {
    NonBlockingCommunicator communicator(nccl.api(), {}, 4, 1, in(60s));
    for (int look = 0; look < 3; ++look) CHECK_FALSE(communicator.is_connected());
    CHECK(communicator.is_connected());
    CHECK(nccl.blocking == 0);
    CHECK(nccl.open == 1);
    CHECK(communicator.is_issued("reducing"));
    nccl.looks_until_ready = 1;
    communicator.check("ncclAllReduce", kInProgress, "reducing");
    CHECK_FALSE(communicator.is_issued("reducing"));
    CHECK(communicator.is_issued("reducing"));
    CHECK(communicator.is_open());
    communicator.close(in(60s));
    CHECK(nccl.open == 0);
    CHECK_FALSE(communicator.is_open());
    // Nobody is asked any more.
    nccl.async_result = kRemoteError;
    CHECK(communicator.is_issued("reducing"));
  }
  CHECK(nccl.aborts == 0);
}

TEST_CASE("nccl whose ranks do not all come is aborted at the deadline") {
  FakeNccl nccl;
  nccl.looks_until_ready = 1 << 30;
  CHECK_THROWS_WITH(
      connected(nccl, 4, 20ms),
      "NCCL failed while connecting 4 ranks: not all of the 4 ranks have come in time");
  CHECK(nccl.open == 0);
  CHECK(nccl.aborts == 1);
}

TEST_CASE("nccl that waits for a rank that died is aborted with who gives it up") {
  FakeNccl nccl;
  nccl.looks_until_ready = 1 << 30;
  {
    const NonBlockingCommunicator communicator(nccl.api(), {}, 4, 1, in(60s));
    CHECK_FALSE(communicator.is_connected());
  }
  CHECK(nccl.aborts == 1);
  CHECK(nccl.open == 0);
}

TEST_CASE("nccl errors are told, those that come later as well") {
  FakeNccl nccl;
  nccl.init_result = kInvalidUsage;
  CHECK_THROWS_WITH(
      NonBlockingCommunicator(nccl.api(), {}, 2, 0, in(60s)),
      "NCCL failed while connecting 2 ranks: ncclCommInitRankConfig: the fake says so "
      "(5)");
  CHECK(nccl.aborts == 0);
  nccl.init_result = kInProgress;
  const auto communicator = connected(nccl, 2, 60s);
  CHECK_THROWS_WITH(
      communicator->check("ncclAllReduce", kInvalidArgument, "reducing 3 tensors"),
      "NCCL failed while reducing 3 tensors: ncclAllReduce: the fake says so (4): last "
      "words");
  nccl.async_result = kRemoteError;
  try {
    static_cast<void>(communicator->is_issued("reducing 3 tensors"));
    FAIL("it did not throw");
  } catch (const NcclError& error) {
    CHECK(error.result() == kRemoteError);
    CHECK_THAT(error.what(), Contains("ncclCommGetAsyncError"));
  }
}

TEST_CASE("nccl's abort may hang: it ends at its bound, and the thread needs nothing of ours") {
  auto nccl = std::make_unique<FakeNccl>();
  std::promise<void> returns;
  nccl->abort_returns = returns.get_future().share();
  auto communicator = connected(*nccl, 2, 60s);
  CHECK_FALSE(communicator->abort(20ms));
  CHECK_THROWS_WITH(communicator->is_issued("reducing"),
                    "NCCL failed while reducing: it was aborted");
  CHECK(communicator->abort(20ms));  // once is enough
  communicator.reset();
  CHECK(nccl->aborts == 1);
  CHECK(nccl->open == 1);
  returns.set_value();
  // The thread that was left to itself goes on with the table that it holds.
  while (nccl->open != 0) std::this_thread::yield();
}

TEST_CASE("nccl that does not end what is in progress is not waited for beyond the deadline") {
  FakeNccl nccl;
  const auto communicator = connected(nccl, 2, 60s);
  nccl.async_result = kInProgress;
  CHECK_THROWS_WITH(
      communicator->close(in(20ms)),
      "NCCL failed while closing a communicator: what is in progress has not ended in time, or not "
      "all ranks close theirs");
  nccl.async_result = kSuccess;
}

}  // namespace
