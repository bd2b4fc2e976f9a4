// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "backends/cuda/kernel_set.h"
#include "backends/cuda/kernels/segments.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/registrations.h"
#include "backends/cuda/stream.h"
#include "backends/shm/shared_memory.h"

namespace ronde::cuda {

/// The size of a rank's flags: a word of 32 bits for each rank of the host.
constexpr std::size_t kFlagBytes = kernels::kMostInputs * sizeof(std::uint32_t);

/// Synchronises the streams of a host's ranks. The ranks meet again and again, all of them in the
/// same order: a rank records a meeting in its stream, which writes the number of that meeting to
/// its flag at each other rank, and then its stream waits until all others have recorded it. A rank
/// waits for numbers in its own flags, so that a wait needs no memory of a rank that has died, and
/// release() can end it.
///
/// Note [One number a rank]
/// A single number for each rank is enough, because its stream runs in order: a flag that has
/// reached a number says that everything the rank queued before that meeting has run, reads of
/// other ranks' memory included. A rank records the next meeting behind its wait for this one, so a
/// flag is ahead of a waiting rank by one at most.
///
/// Note [No wait for nothing]
/// A wait is queued only once all ranks are known to have queued what it is for, which an exchange
/// between the ranks' threads tells. So everything that a wait depends on was queued before it, on
/// whichever GPU: it ends even where streams share a queue of the hardware, or processes a GPU, as
/// long as the driver submits work in the order of calls (it does not know of flags), and no rank
/// dies.
///
/// Thread-safety: one thread at a time.
class PeerSignals {
 public:
  /// Flags in host memory, which streams write and wait for (cuStreamBatchMemOp): while a stream
  /// waits, other processes have the GPU. `memory`: common to the ranks of the host, of kFlagBytes
  /// for each of `size`, zeroed. This is the rank at `own`.
  PeerSignals(const std::shared_ptr<const DeviceContext>& context, shm::SharedMemory memory,
              std::size_t size, std::size_t own);

  /// Flags in the memory of GPUs, which kernels write and look at. For ranks that have a GPU each:
  /// processes on one GPU run in turns, and a kernel that waits takes up the whole of its turn.
  /// `flags`: where those of a rank are in this process, zero before any rank records; asked
  /// whenever something is recorded. `kernels` outlive it. `released`: a word.
  using Flags = std::function<DevicePointer(std::size_t rank)>;
  PeerSignals(KernelSet& kernels, PinnedBlock released, Flags flags, std::size_t size,
              std::size_t own);

  /// Records the next meeting: the others are told once the stream has run all that is queued.
  void record(Stream& stream);
  /// What is queued on the stream from now on runs after all ranks have come to the meeting that
  /// this rank has recorded last.
  void wait_for_all(Stream& stream);

  /// The group is dead: ends the waits of this rank, also those to come. It waits for nothing, and
  /// is repeated until all is over, as a rank that dies may still write lower numbers.
  void release() noexcept;

 private:
  /// Of the flag that the rank at `writer` writes, from where a rank's flags begin.
  static constexpr std::size_t offset_of(std::size_t writer) noexcept {
    return writer * sizeof(std::uint32_t);
  }

  const std::size_t size_;
  const std::size_t own_;
  const Flags flags_;
  std::uint32_t recorded_ = 0;  ///< the last meeting; begins again after the largest number
  // By streams.
  const shm::SharedMemory memory_;
  std::unique_ptr<const PinnedRange> pinned_;
  bool is_released_ = false;
  // By kernels.
  KernelSet* const kernels_ = nullptr;
  const PinnedBlock released_;
};

}  // namespace ronde::cuda
