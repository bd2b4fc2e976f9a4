// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/cuda/stream.h"
#include "backends/nccl/nccl.h"
#include "fake_cuda.h"
#include "fake_nccl.h"
#include "tests/support/ranks.h"
#include "tests/support/requests.h"

namespace ronde::test {

/// Ranks that are threads, each with a Runtime over shared memory for the CPU and a fake NCCL for
/// GPUs, of which each has its own.
class NcclRanks {
 public:
  explicit NcclRanks(int size, const FakeNccl::Options& nccl = {},
                     const FakeCuda::Options& cuda = {.devices = 4});

  /// `body(rank, runtime)` on each, between start and shutdown; then nothing may be left of what
  /// was acquired, and nothing have been misused.
  void run(const std::function<void(int rank, Runtime& runtime)>& body);
  /// The same without these checks, and without a shutdown.
  void run_to_its_death(const std::function<void(int rank, Runtime& runtime)>& body);
  /// What a test ends with.
  void check_clean() const;

  RuntimeOptions runtime_options(const inproc::Group& group, int rank) const;
  Device device(int rank) const {
    return {DeviceKind::Cuda, device_of[static_cast<std::size_t>(rank)]};
  }

  /// What rank 0 was to log.
  std::vector<std::string> warnings() const;

  FakeCuda cuda;
  FakeNccl nccl;
  NcclOptions options;
  Config config = test_config();
  std::vector<int> device_of;  ///< by rank
  inproc::Group group;

 private:
  mutable std::mutex mutex_;
  mutable std::vector<std::string> warnings_;  ///< guarded by mutex_
};

/// A stream of the program's on a rank's GPU.
class ProgramStream {
 public:
  ProgramStream(NcclRanks& machine, int rank)
      : machine_(machine),
        context_(
            std::make_shared<cuda::DeviceContext>(machine.cuda.api(), machine.device(rank).index)),
        stream_(context_) {}

  cuda::StreamHandle handle() const { return stream_.handle(); }
  /// It does not run on before release(), and neither does what waits for this copy.
  void hold_before_copy(void* to, const void* from, std::size_t bytes);
  void release() { machine_.cuda.release(handle()); }

 private:
  NcclRanks& machine_;
  const std::shared_ptr<const cuda::DeviceContext> context_;
  cuda::Stream stream_;
};

/// A backend for what ranks have on GPUs that they share: over that of the host, as memory of the
/// fake is the host's. For NcclOptions::fallback.
std::unique_ptr<Backend> make_stand_in(BackendContext& context);

/// A tensor of a rank, and one for its result.
struct Buffers {
  Buffers(DataType dtype, std::size_t count) : input(dtype, count), output(dtype, count) {}
  TensorValues input, output;
};

/// An operation on buffers of that many elements in one dimension.
Request request_on(Device device, Collective kind, const std::string& name, Buffers& buffers);

}  // namespace ronde::test
