// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "backends/nccl/nccl.h"
#include "tests/support/fakes/fake_nccl.h"
#include "tests/support/gpu/gpu_ranks.h"

namespace ronde::test {

/// Those with a fake NCCL, over shared memory for the CPU. check_clean() finds what was misused,
/// too.
class NcclRanks : public GpuRanks {
 public:
  explicit NcclRanks(int size, const FakeNccl::Options& nccl = {},
                     const FakeCuda::Options& gpus = {.devices = 4});

  /// Ranks whose start fails, with this text.
  void fail_to_start(const std::function<void(const std::string& text)>& check_text);
  /// Ends the threads that nobody waits for any more, as they connect with ranks that are gone.
  void end_connecting();
  /// Until those that were left to themselves have ended, as what they hold is of the fakes.
  void wait_for_threads() const;
  void check_clean() const override;
  /// A next job sums.
  void check_recovery();

  ProgramGpu gpu(int rank) const override;
  RuntimeOptions runtime_options(int rank) override;

  FakeNccl nccl;
  NcclOptions options;
  Config config = test_config();
  std::vector<std::string> warnings{};  ///< that rank 0 was to log; read once the ranks have ended

 private:
  const std::set<std::string> threads_before_;
};

inline std::uint64_t nccl_counter(const Runtime& runtime, const std::string& name) {
  return counter_of(runtime, "nccl", name);
}

}  // namespace ronde::test
