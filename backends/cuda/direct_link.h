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

#include "backends/cuda/driver_api.h"
#include "backends/cuda/workbench.h"
#include "backends/gpu/host_exchange.h"
#include "backends/vendor/around_calls.h"
#include "core/src/base/steps.h"
#include "ronde/backend.h"

namespace ronde::cuda {

/// The backend for a DirectLink, where all ranks can have it; null where one cannot, the factory is
/// empty, or there are more than `most_ranks`. All ranks call it with factories of the same kind.
std::unique_ptr<Backend> make_direct_messages(const BackendFactory& factory, std::size_t most_ranks,
                                              BackendContext& context);

/// Messages between memory of GPUs, by an MPI that takes their addresses.
///
/// Note [Messages alone]
/// Of such an MPI nothing but sends and receives is asked. Its collectives do not suit: Open MPI
/// takes addresses of GPUs in no non-blocking one, and would reduce by the CPU what the CPU cannot
/// read; and reductions by operators of Ronde's own do so in any MPI. Ronde's kernels reduce
/// instead, in the order of ranks, to the same bits as by CUDA IPC. Two ranks send each other what
/// belongs to collectives and to messages in one order, that of the operations, so that one tag
/// serves for all.
///
/// Note [Memory of direct messages]
/// Only Ronde's own memory is sent and received, never the program's: MPI cannot be told to stop,
/// and may still write when the group is dead and the program has its tensors back. Ronde's is kept
/// then (hangs()). It is also the same memory in each operation, which an MPI has to register but
/// once.
///
/// Note [Context of MPI's calls]
/// MPI goes on with a message in whatever call it is in, also one that is about memory of the host,
/// and then may call the driver, which needs the GPU's context. So from the trial on every call of
/// MPI in this process has it (CudaOptions::surround_mpi_calls), until no message can be on its
/// way: where some were given up, for as long as the process lives.
///
/// Thread-safety: one thread at a time; stats() from any.
class DirectLink {
 public:
  /// `ranks`: what they are called in texts, in their order; this is the one at `own`.
  /// `surround`: CudaOptions::surround_mpi_calls.
  DirectLink(std::unique_ptr<Backend> messages, vendor::SurroundCalls surround,
             std::vector<int> ranks, int own);
  ~DirectLink();
  DirectLink(const DirectLink&) = delete;
  DirectLink& operator=(const DirectLink&) = delete;

  /// All ranks try it out; messages have `patience` to arrive. Throws Error where the GPU itself
  /// fails. Leaves in `problem` why it
  /// cannot be used, the same on every rank; an empty text if it can.
  Steps prove(Workbench& bench, gpu::HostExchange& exchange, std::chrono::milliseconds patience,
              std::string& problem);

  std::size_t size() const noexcept { return ranks_.size(); }
  std::size_t own() const noexcept { return own_; }

  /// Begin messages of the GPU's memory, which is not empty, and on which no work is queued. Once
  /// it is proven.
  /// @{
  void send(std::size_t to, DevicePointer from, std::size_t bytes);
  void receive(std::size_t from, DevicePointer to, std::size_t bytes);
  /// @}
  /// Whether all that were begun have ended. Throws Error if one failed.
  bool have_ended();

  /// Messages were begun and have not ended: MPI may use their memory.
  bool hangs() const noexcept { return !pending_.empty(); }

  /// It was given up: MPI is not asked again, nor finalised.
  bool is_over() const noexcept { return is_over_; }

  /// As those of Backend.
  /// @{
  void abort() noexcept;
  void close();
  /// @}

  std::uint64_t sent_bytes() const noexcept { return sent_bytes_; }

 private:
  struct Trial;
  struct Outcome;

  void begin_trial(bool is_large);
  void check_trial() const;
  std::string end_trial(const std::vector<Outcome>& outcomes);
  void drop_trial() noexcept;
  void surround_calls(std::shared_ptr<const DeviceContext> context);
  void end_surroundings() noexcept;

  const std::unique_ptr<Backend> messages_;
  const vendor::SurroundCalls surround_;
  const std::vector<int> ranks_;
  const std::size_t own_;
  std::unique_ptr<vendor::Surrounded> surrounded_;  ///< Note [Context of MPI's calls]
  std::unique_ptr<Trial> trial_;
  std::deque<std::unique_ptr<Operation>> pending_;
  bool is_over_ = false;  ///< aborted
  std::atomic<std::uint64_t> sent_bytes_{0};
};

}  // namespace ronde::cuda
