// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/cuda.h"
#include "backends/nccl/nccl.h"
#include "tests/support/fakes/fake_cuda.h"
#include "tests/support/fakes/fake_nccl.h"
#include "tests/support/gpu/gpu_tensor.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {

/// How data moves.
struct Way {
  const char* name;
  bool ipc = true;
  bool cache = true;
  std::uint64_t direct_bytes = 0;
};
constexpr Way kIpc{.name = "ipc"};
constexpr Way kDirect{.name = "ipc, mapped directly", .direct_bytes = 1};
constexpr Way kStaged{.name = "staged", .ipc = false};

/// Of the backend, over the fake: small enough that chunks, shares and pieces are many.
CudaOptions cuda_options_of(const FakeCuda& cuda, const Way& way = kIpc);

/// Ranks that are threads, each with a Runtime and a fake GPU: that of rank r is number r modulo
/// that of GPUs. Runs one job after the other.
class GpuRanks {
 public:
  using Body = std::function<void(Runtime& runtime, ProgramGpu& gpu)>;

  /// Rank r is on the host `host_of[r]`.
  GpuRanks(const std::vector<int>& host_of, const FakeCuda::Options& gpus);
  virtual ~GpuRanks() = default;

  /// Runs `body` on each rank, between start and shutdown; then check_clean().
  void run(const Body& body);
  /// Runs `body` without a shutdown and without that check, for groups that die. What a rank has
  /// queued on its GPU stays queued until all have ended.
  void run_to_its_death(const Body& body);
  /// The calling rank of the current job dies.
  void kill(int rank) { group.kill(rank); }
  /// Nothing is left of what was acquired.
  virtual void check_clean() const;

  int size() const noexcept { return static_cast<int>(host_of_.size()); }
  virtual ProgramGpu gpu(int rank) const;
  /// Returns the options of a rank of the current job.
  virtual RuntimeOptions runtime_options(int rank) = 0;

  FakeCuda cuda;
  std::vector<int> device_of;  ///< by rank

 protected:
  void begin_job() { group = inproc::Group(host_of_); }

  inproc::Group group;  ///< of the current job

 private:
  const std::vector<int> host_of_;
};

/// Ranks with the backend of GPUs without NCCL, which log warnings. On the CPU the ranks of a host
/// reduce in shared memory.
struct CudaRanks : GpuRanks {
  explicit CudaRanks(int ranks, const Way& way = kIpc, const FakeCuda::Options& gpus = {})
      : CudaRanks(std::vector<int>(static_cast<std::size_t>(ranks)), way, gpus) {}
  CudaRanks(const std::vector<int>& host_of, const Way& way, const FakeCuda::Options& gpus = {})
      : GpuRanks(host_of, gpus), options(cuda_options_of(cuda, way)) {}

  RuntimeOptions runtime_options(int rank) override;

  CudaOptions options;
  std::string cpu_backend = "shm";
};

/// Ranks with a fake NCCL, over shared memory for the CPU. check_clean() finds what was misused,
/// too.
class NcclRanks : public GpuRanks {
 public:
  explicit NcclRanks(int size, const FakeNccl::Options& nccl = {},
                     const FakeCuda::Options& gpus = {.devices = 4});

  /// Ranks whose start fails, with this text.
  void fail_to_start(const std::function<void(const std::string& text)>& check_text);
  /// Ends the threads that nobody waits for any more, as they connect with ranks that are gone;
  /// then check_clean().
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

/// A sum on a GPU over all ranks, in place, of values that tell the rank.
class GpuSum {
 public:
  GpuSum(Runtime& runtime, ProgramGpu& gpu, std::size_t count);

  /// To be submitted; the program may change it.
  Request request(const std::string& name = {}, ProcessSet set = kGlobalSet);
  /// To or from another rank, of the same elements.
  Request message(int peer, bool is_sent);
  Work start(const std::string& name = {}) { return runtime_->submit(request(name)); }
  /// Waits for it, and throws CheckFailed unless it has the sum over the ranks of the set.
  void check_result(const Work& work, ProcessSet set = kGlobalSet) const;
  /// Throws CheckFailed unless all elements are `expected`.
  void check_values(float expected, const std::string& what) const;

  void write(float value);
  std::vector<float> read() const;
  const GpuTensor& tensor() const noexcept { return tensor_; }

 private:
  Runtime* runtime_;
  ProgramGpu* gpu_;
  std::size_t count_;
  GpuTensor tensor_;
};

/// One of them, from the beginning to the end.
void sum_on_gpu(Runtime& runtime, ProgramGpu& gpu, std::size_t count, ProcessSet set = kGlobalSet);

/// Starts one whose tensor nothing but the operation owns, and `memory` watches.
Work start_owned(Runtime& runtime, ProgramGpu& gpu, std::size_t count, std::weak_ptr<void>& memory,
                 ProcessSet set = kGlobalSet);

/// Throws CheckFailed unless these counters of a backend have these values.
using Counters = std::vector<std::pair<std::string, std::uint64_t>>;
void check_counters(const Runtime& runtime, const Counters& expected,
                    const std::string& part = "cuda");

}  // namespace ronde::test
