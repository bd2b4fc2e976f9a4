// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu_ranks.h"
#include "hosts_backend.h"
#include "nccl_ranks.h"
#include "tests/support/faulty_backend.h"

namespace ronde::test {

/// Ranks that are threads as if on several hosts, each with a GPU of its own. NCCL, a fake, serves
/// each host; between hosts goes a backend of the CPU with the bits of the hierarchical one. All
/// allreduces cross hosts so, however small.
class NcclHosts {
 public:
  /// `host_of`: that of each rank.
  explicit NcclHosts(const std::vector<int>& host_of, const FakeNccl::Options& nccl = {},
                     unsigned disorder = 0);

  ProgramGpu gpu(int rank) const { return {machine.cuda.api(), machine.device(rank).index}; }
  int size() const noexcept { return static_cast<int>(host_of_.size()); }
  /// GPUs and NCCL, and the options of the backend.
  NcclRanks machine;
  /// Of the CPU's backend of this rank, in the next job.
  Faults& faults(int rank) { return *faults_[static_cast<std::size_t>(rank)]; }
  /// Of the job.
  inproc::Group group() const { return hosts_->group(); }

  /// As NcclRanks. Each is a job of its own.
  /// @{
  void run(const std::function<void(int rank, Runtime& runtime)>& body);
  void run_to_its_death(const std::function<void(int rank, Runtime& runtime)>& body);
  /// @}

 private:
  RuntimeOptions runtime_options(int rank);
  void begin_job();

  const std::vector<int> host_of_;
  std::unique_ptr<HostsBackends> hosts_;
  std::vector<std::shared_ptr<Faults>> faults_;
};

}  // namespace ronde::test
