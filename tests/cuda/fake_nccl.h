// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "backends/nccl/nccl_api.h"
#include "fake_cuda.h"

namespace ronde::test {

/// An NCCL for ranks that are threads, over the memory and the streams of a FakeCuda: what is
/// called is queued once NCCL was asked for it often enough, begins when the stream comes to it,
/// and ends when all ranks have come. It reduces as NCCL does: rank by rank, but not in their
/// order, in the type itself, and without NaN in min and max. Ranks on one GPU do not connect.
///
/// There is one at a time, for NCCL's functions are not members.
///
/// Thread-safety: full.
class FakeNccl {
 public:
  struct Options {
    int version = 22809;
    std::vector<std::string> lacks = {};  ///< functions
    int looks = 2;                        ///< before what goes on is over; 0: calls end at once
  };
  FakeNccl(FakeCuda& cuda, const Options& options);
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  vendor::SymbolLookup lookup() const;
  // FakeCuda::fail() and calls() cover NCCL's functions, too.

  /// All that connect from now on wait for a rank that does not come. `ranks`: only those that are
  /// so many; 0: all.
  void lose_a_rank(int ranks = 0);
  /// Every communicator says so when it is asked, and work that is queued does not end.
  void break_down(nccl::Result result);
  /// Aborts do not return before that.
  void hold_aborts(std::shared_future<void> until);

  /// What is acquired at the moment.
  struct Live {
    int communicators = 0;
    int registrations = 0;
    int allocations = 0;
    friend bool operator==(const Live&, const Live&) = default;
  };
  Live live() const;
  /// What NCCL forbids, and would not tell in time: calls while another goes on, on communicators
  /// that have ended, that do not fit those of the other ranks, or registrations that are left.
  std::vector<std::string> misuses() const;

  struct State;

 private:
  const std::unique_ptr<State> state_;
};

}  // namespace ronde::test
