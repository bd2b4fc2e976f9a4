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

/// Ranks that are threads, each with a Runtime over shared memory for the CPU and a fake NCCL for
/// GPUs, of which each has its own. Runs one job after the other.
class NcclRanks {
 public:
  using Body = std::function<void(Runtime& runtime, ProgramGpu& gpu)>;

  explicit NcclRanks(int size, const FakeNccl::Options& nccl = {},
                     const FakeCuda::Options& cuda = {.devices = 4});

  /// `body` on each, between start and shutdown; then nothing may be left of what was acquired, and
  /// nothing have been misused.
  void run(const Body& body);
  /// The same without these checks, and without a shutdown.
  void run_to_its_death(const Body& body);
  /// Ranks whose start fails, with this text.
  void fail_to_start(const std::function<void(const std::string& text)>& check_text);
  /// Ends the threads that nobody waits for any more, as they connect with ranks that are gone.
  void end_connecting();
  /// Until those that were left to themselves have ended, as what they hold is of the fakes.
  void wait_for_threads() const;
  /// What a test ends with.
  void check_clean() const;
  /// A next job sums.
  void check_recovery();

  int size() const noexcept { return static_cast<int>(device_of.size()); }
  ProgramGpu gpu(int rank) const { return {cuda.api(), device_of[static_cast<std::size_t>(rank)]}; }
  /// Of a rank of the current job.
  RuntimeOptions runtime_options(int rank);
  /// The calling rank of the current job dies.
  void kill(int rank) { group.kill(rank); }

  FakeCuda cuda;
  FakeNccl nccl;
  NcclOptions options;
  Config config = test_config();
  std::vector<int> device_of;           ///< by rank
  std::vector<std::string> warnings{};  ///< that rank 0 was to log; read once the ranks have ended

 private:
  void begin_job() { group = inproc::Group(size()); }

  inproc::Group group;  ///< of the current job
  const std::set<std::string> threads_before_;
};

inline std::uint64_t nccl_counter(const Runtime& runtime, const std::string& name) {
  return counter_of(runtime, "nccl", name);
}

}  // namespace ronde::test
