// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "backends/cuda/ipc/registrations.h"
#include "backends/gpu/driver/memory.h"
#include "backends/gpu/driver/stream.h"
#include "backends/gpu/kernels/kernel_set.h"
#include "backends/gpu/kernels/segments.h"
#include "backends/shm/memory/shared_memory.h"

namespace ronde::cuda {

/// Bytes of a rank's flags: a word of 32 bits for each rank of the host.
constexpr std::size_t kFlagBytes = kernels::kMostInputs * sizeof(std::uint32_t);

/// Synchronises the streams of a host's ranks at numbered meetings, which all ranks make in the
/// same order. A rank's stream writes the number of a meeting to its flag at each peer, and then
/// waits until all peers have written it to this rank's flags. A rank waits on its own memory
/// alone, so a wait needs no memory of a dead rank, and release() can end it.
///
/// Note [One number a rank]
/// One number for each rank is enough, because streams run in order: a flag that has reached a
/// number shows that all work queued before that meeting has run, also reads of peers' memory. A
/// rank records the next meeting behind its wait for this one, so a flag is at most one ahead.
///
/// Note [No wait for nothing]
/// A wait is queued only after an exchange between the ranks' threads has shown that all ranks have
/// queued the writes. So all that a wait depends on was queued before it, on whichever GPU: it ends
/// even if streams share a hardware queue, or processes a GPU, as long as the driver submits work
/// in the order of calls (it does not know of flags), and no rank dies.
///
/// Thread-safety: one thread at a time.
class PeerSignals {
 public:
  /// Flags in host memory, which streams write and wait for (cuStreamBatchMemOp): other processes
  /// use the GPU while a stream waits. `memory`: shared by the host's ranks, zeroed, kFlagBytes for
  /// each of `size`. This is the rank at `own`.
  PeerSignals(const std::shared_ptr<const DeviceContext>& context, shm::SharedMemory memory,
              std::size_t size, std::size_t own);

  /// Flags in the memory of GPUs, which kernels write and poll, for ranks with a GPU each:
  /// processes on one GPU run in turns, and a waiting kernel uses up its turn. `flags` returns the
  /// address of a rank's flags in this process, at each call; they are zero at first. `kernels`
  /// outlive it. `released`: a word.
  using Flags = std::function<DevicePointer(std::size_t rank)>;
  PeerSignals(KernelSet& kernels, PinnedBlock released, Flags flags, std::size_t size,
              std::size_t own);

  /// Records the next meeting: the flags are written once the stream has run all queued work.
  void record(Stream& stream);
  /// Work queued on the stream from now on runs after all ranks have come to the meeting that this
  /// rank has recorded last.
  void wait_for_all(Stream& stream);

  /// Ends this rank's waits, also future ones, after the group has failed. It does not block, and
  /// is called repeatedly until the streams are idle, as a dying rank may still write lower
  /// numbers.
  void release() noexcept;

 private:
  const std::size_t size_;
  const std::size_t own_;
  const Flags flags_;
  std::uint32_t recorded_ = 0;  ///< the last meeting; begins again after the largest number
  // With flags in host memory:
  const shm::SharedMemory memory_;
  std::unique_ptr<const PinnedRange> pinned_;
  bool is_released_ = false;
  // With kernels:
  KernelSet* const kernels_ = nullptr;
  const PinnedBlock released_;
};

}  // namespace ronde::cuda
