// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "backends/gpu/base/host_exchange.h"
#include "backends/gpu/driver/driver_api.h"
#include "backends/gpu/gpu_resources.h"
#include "backends/vendor/api_table.h"
#include "core/src/base/steps.h"
#include "ronde/backend.h"

namespace ronde::cuda {

/// Makes the backend for a GpuAwareLink if all ranks can have it; else, without a factory, or with
/// more than `most_ranks`, returns null. Either all ranks have a factory, or none.
std::unique_ptr<Backend> make_direct_messages(const BackendFactory& factory, std::size_t most_ranks,
                                              BackendContext& context);

/// Messages between memory of GPUs, by an MPI that takes their addresses.
///
/// Note [Messages alone]
/// Only sends and receives of such an MPI are used. Open MPI's non-blocking collectives take no
/// addresses of GPUs, and reductions with Ronde's own operators would run on the CPU, which cannot
/// read that memory. Ronde's kernels reduce in rank order, to the same bits as by CUDA IPC. Two
/// ranks exchange all messages in the order of operations, so one tag is enough.
///
/// Note [Memory of direct messages]
/// Only Ronde's own memory is sent and received, never the program's: MPI requests cannot be
/// cancelled, and MPI may still write after the group has failed and the program has its tensors
/// back. Ronde keeps its memory then (hangs()). MPI registers it only once.
///
/// Note [Context of MPI's calls]
/// MPI may progress a message in any call, also in one about host memory, and may then call the
/// driver, which needs the GPU's context. So every MPI call of this process has that context
/// (CudaOptions::wrap_mpi_calls) from the trial until no message is in flight; if messages were
/// abandoned, until the process ends.
///
/// Thread-safety: one thread at a time; sent_bytes(): any.
class GpuAwareLink {
 public:
  /// `ranks`: their names in texts; this is the one at `own`. `wrap`:
  /// CudaOptions::wrap_mpi_calls.
  GpuAwareLink(std::unique_ptr<Backend> messages, vendor::WrapCalls wrap, std::vector<int> ranks,
               int own);
  ~GpuAwareLink();

  /// All ranks try it; messages have `patience` to arrive. Leaves in `problem` why it cannot be
  /// used, equal on all ranks; empty if it can. Throws Error if the GPU itself fails.
  Steps prove(GpuResources& resources, gpu::HostExchange& exchange,
              std::chrono::milliseconds patience, std::string& problem);

  std::size_t size() const noexcept { return ranks_.size(); }
  std::size_t own() const noexcept { return own_; }

  /// Begin a message, after the trial. No queued work uses its memory, which is not empty.
  void send(std::size_t to, DevicePointer from, std::size_t bytes);
  void receive(std::size_t from, DevicePointer to, std::size_t bytes);
  /// Whether all messages have ended. Throws Error if one failed.
  bool have_ended();

  /// Whether messages have not ended: MPI may use their memory.
  bool hangs() const noexcept { return !pending_.empty(); }

  /// Whether it was aborted: MPI is neither called again nor finalised.
  bool is_over() const noexcept { return is_over_; }

  /// As those of Backend.
  void abort() noexcept;
  void close();

  std::uint64_t sent_bytes() const noexcept { return sent_bytes_; }

 private:
  struct Trial;

  void begin_trial(bool is_large);
  void check_trial() const;
  void drop_trial() noexcept;
  void wrap_calls(std::shared_ptr<const DeviceContext> context);
  void unwrap_calls() noexcept;

  const std::unique_ptr<Backend> messages_;
  const vendor::WrapCalls wrap_;
  const std::vector<int> ranks_;
  const std::size_t own_;
  std::shared_ptr<void> wrapped_calls_;  ///< Note [Context of MPI's calls]
  std::unique_ptr<Trial> trial_;
  std::deque<std::unique_ptr<Operation>> pending_;
  bool is_over_ = false;
  std::atomic<std::uint64_t> sent_bytes_{0};
};

}  // namespace ronde::cuda
