// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "backends/nccl/nccl_api.h"
#include "tests/support/fakes/fake_cuda.h"

namespace ronde::nccl {

// Of ncclResult_t, what only tests name.
constexpr Result kUnhandledCudaError = 1;
constexpr Result kSystemError = 2;
constexpr Result kInternalError = 3;
constexpr Result kInvalidArgument = 4;
constexpr Result kInvalidUsage = 5;
constexpr Result kRemoteError = 6;

}  // namespace ronde::nccl

namespace ronde::test {

/// An NCCL for ranks that are threads, over the memory and the streams of a FakeCuda. Calls block
/// until the other ranks have made theirs where NCCL's do: those that connect, register or
/// finalize, the first collective of a communicator, and the first message of two ranks. What is
/// called is queued then, begins when the stream comes to it, and ends when all of its ranks have
/// come. It reduces as NCCL does: rank by rank, but not in their order, in the type itself, and
/// without NaN in min and max. Ranks on one GPU connect as Options says.
///
/// There is one at a time, for NCCL's functions are not members.
///
/// Thread-safety: full.
class FakeNccl {
 public:
  struct Options {
    int version = 22809;
    std::vector<std::string> lacks = {};  ///< functions
    bool makes_windows = true;            ///< else as where GPUs do not reach each other
    bool ranks_share_gpus = false;        ///< NCCL_MULTI_RANK_GPU_ENABLE
    /// Where several ranks that are processes meet, over fakes of their own, by files.
    std::string meeting_place = {};
  };
  FakeNccl(FakeCuda& cuda, const Options& options);
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  vendor::SymbolLookup lookup() const;
  // FakeCuda::fail() and calls() cover NCCL's functions, too.

  /// All calls that wait for other ranks anywhere block from now on, until they are aborted.
  void lose_a_rank();
  /// The connecting that blocks now fails.
  void end_connecting();
  /// Every communicator says so when it is asked, and work that is queued does not end.
  void break_down(nccl::Result result);
  /// Aborts do not return before that.
  void hold_aborts(std::shared_future<void> until);

  /// What is acquired at the moment.
  struct Live {
    int communicators = 0;
    int windows = 0;
    int allocations = 0;
    friend bool operator==(const Live&, const Live&) = default;
  };
  Live live() const;
  /// What NCCL forbids, and would not report in time: calls without a current context, on
  /// communicators that have ended, or that do not fit those of the other ranks, and registrations
  /// that are left.
  std::vector<std::string> misuses() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace ronde::test
