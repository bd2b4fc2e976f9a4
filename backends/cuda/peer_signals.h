// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
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

/// The halves of a fusion buffer, which chunks use in turn.
constexpr std::size_t kHalves = 2;

/// What a rank has done to a half of its fusion buffer.
enum class Mark : std::uint8_t {
  Packed,   ///< its elements are there
  Reduced,  ///< its share of the result is there
  Read,     ///< it has read what it needs of the others'
};
constexpr std::size_t kMarks = 3;

/// The size of a rank's flags: a word of 32 bits for each mark, half and rank of the host.
constexpr std::size_t kFlagBytes = kMarks * kHalves * kernels::kMostInputs * sizeof(std::uint32_t);

/// How the streams of a host's ranks tell each other how far they are: each rank has flags into
/// which the others write how often they have recorded a mark. A rank waits for numbers in its own
/// flags, so that a wait needs no memory of a rank that has died, and release() can end it. All
/// ranks record the same marks in the same order.
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

  /// Tells the others once the stream has come here.
  void record(Mark mark, std::size_t half, Stream& stream);
  /// What is queued on the stream from now on runs after all ranks' last recordings, of which there
  /// may be none.
  void wait_for_all(Mark mark, std::size_t half, Stream& stream);

  /// The group is dead: ends the waits of this rank, also those to come. It waits for nothing, and
  /// is repeated until all is over, as a rank that dies may still write lower numbers.
  void release() noexcept;

 private:
  static constexpr std::size_t index_of(Mark mark, std::size_t half) noexcept {
    return static_cast<std::size_t>(mark) * kHalves + half;
  }
  /// Of the rank at `writer`, from where a rank's flags begin.
  static constexpr std::size_t offset_of(std::size_t index, std::size_t writer) noexcept {
    return (index * kernels::kMostInputs + writer) * sizeof(std::uint32_t);
  }
  /// How often this rank has, as flags tell it: they go past the largest number.
  std::uint32_t recorded(std::size_t index) const noexcept {
    return static_cast<std::uint32_t>(recorded_[index]);
  }

  const std::size_t size_;
  const std::size_t own_;
  const Flags flags_;
  std::array<std::uint64_t, kMarks * kHalves> recorded_{};  ///< times, by index_of()
  // By streams.
  const shm::SharedMemory memory_;
  std::unique_ptr<const PinnedRange> pinned_;
  bool is_released_ = false;
  // By kernels.
  KernelSet* const kernels_ = nullptr;
  const PinnedBlock released_;
};

}  // namespace ronde::cuda
