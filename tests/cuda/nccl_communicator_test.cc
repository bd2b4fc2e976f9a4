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

const NonBlockingCommunicator::Watch kNobodyDies = [] {};

NonBlockingCommunicator::Clock::time_point in(std::chrono::milliseconds time) {
  return NonBlockingCommunicator::Clock::now() + time;
}

TEST_CASE("an nccl communicator does not block, and is closed once it is done") {
  FakeNccl nccl;
  {
    NonBlockingCommunicator communicator(nccl.api(), {}, 4, 1, in(60s), kNobodyDies);
    CHECK(nccl.blocking == 0);
    CHECK(nccl.open == 1);
    CHECK(communicator.is_issued("reducing"));
    nccl.looks_until_ready = 1;
    communicator.check("ncclAllReduce", kInProgress, "reducing");
    CHECK_FALSE(communicator.is_issued("reducing"));
    CHECK(communicator.is_issued("reducing"));
    communicator.close(in(60s), kNobodyDies);
    CHECK(nccl.open == 0);
  }
  CHECK(nccl.aborts == 0);
}

TEST_CASE("nccl that finishes at once is not waited for") {
  FakeNccl nccl;
  nccl.init_result = kSuccess;
  NonBlockingCommunicator communicator(nccl.api(), {}, 1, 0, in(0s), kNobodyDies);
  CHECK(nccl.looks_until_ready == 3);
}

TEST_CASE("nccl whose ranks do not all come is aborted at the deadline") {
  FakeNccl nccl;
  nccl.looks_until_ready = 1 << 30;
  CHECK_THROWS_WITH(
      NonBlockingCommunicator(nccl.api(), {}, 4, 1, in(20ms), kNobodyDies),
      "NCCL failed while connecting 4 ranks: not all of the 4 ranks have come in time");
  CHECK(nccl.open == 0);
  CHECK(nccl.aborts == 1);
}

TEST_CASE("nccl that waits for a rank that died is aborted with the death's own words") {
  FakeNccl nccl;
  nccl.looks_until_ready = 1 << 30;
  int looks = 0;
  const auto dies = [&] {
    if (++looks == 3) throw ronde::GroupError(2, "rank 2 died");
  };
  CHECK_THROWS_AS(NonBlockingCommunicator(nccl.api(), {}, 4, 1, in(60s), dies), ronde::GroupError);
  CHECK(nccl.open == 0);
}

TEST_CASE("nccl errors are told, those that come later as well") {
  FakeNccl nccl;
  nccl.init_result = kInvalidUsage;
  CHECK_THROWS_WITH(
      NonBlockingCommunicator(nccl.api(), {}, 2, 0, in(60s), kNobodyDies),
      "NCCL failed while connecting 2 ranks: ncclCommInitRankConfig: the fake says so "
      "(5)");
  CHECK(nccl.aborts == 0);
  nccl.init_result = kInProgress;
  NonBlockingCommunicator communicator(nccl.api(), {}, 2, 0, in(60s), kNobodyDies);
  CHECK_THROWS_WITH(
      communicator.check("ncclAllReduce", kInvalidArgument, "reducing 3 tensors"),
      "NCCL failed while reducing 3 tensors: ncclAllReduce: the fake says so (4): last "
      "words");
  nccl.async_result = kRemoteError;
  try {
    static_cast<void>(communicator.is_issued("reducing 3 tensors"));
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
  auto communicator = std::make_unique<NonBlockingCommunicator>(nccl->api(), UniqueId{}, 2, 0,
                                                                in(60s), kNobodyDies);
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
  NonBlockingCommunicator communicator(nccl.api(), {}, 2, 0, in(60s), kNobodyDies);
  nccl.async_result = kInProgress;
  CHECK_THROWS_WITH(
      communicator.close(in(20ms), kNobodyDies),
      "NCCL failed while closing a communicator: what is in progress has not ended in "
      "time");
  nccl.async_result = kSuccess;
}

}  // namespace
