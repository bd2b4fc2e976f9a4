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
#include "backends/cuda/peer_signals.h"
#include "backends/cuda/registrations.h"
#include "backends/shm/shared_memory.h"

namespace ronde::cuda {

/// What the flags of a rank take: a word of 32 bits for each mark, half and rank of the host.
constexpr std::size_t kFlagBytes = kMarks * kHalves * kernels::kMostInputs * sizeof(std::uint32_t);

/// By flags: each rank has a board of them, into which the others write how often they have
/// recorded. A wait is for numbers on the own board, so that it needs nothing of a rank that has
/// died, and release() can end it.
///
/// Thread-safety: one thread at a time.
class FlagSignals : public PeerSignals {
 public:
  void record(Mark mark, std::size_t half, Stream& stream) final;
  /// The others record as often as this rank does.
  void wait_for_all(Mark mark, std::size_t half, Stream& stream) final;

 protected:
  using Boards = std::function<DevicePointer(std::size_t rank)>;

  /// Of the rank at `own` among `size`. `boards`: where each rank's is in this process, zero before
  /// any of them records; looked at whenever something is recorded.
  FlagSignals(Boards boards, std::size_t size, std::size_t own)
      : boards_(std::move(boards)), size_(size), own_(own) {}

  /// What the others write on the own board.
  std::vector<DevicePointer> flags_of_others(std::size_t index) const;
  /// How often this rank has, as flags tell it: they go past the largest number.
  std::uint32_t recorded(std::size_t index) const noexcept {
    return static_cast<std::uint32_t>(recorded_[index]);
  }

 private:
  /// Queues what writes the value to all these words once all that is queued now has run and shows.
  virtual void write(Stream& stream, const std::vector<DevicePointer>& flags,
                     std::uint32_t value) = 0;
  /// Queues what waits until all these words have come to the value.
  virtual void await(Stream& stream, const std::vector<DevicePointer>& flags,
                     std::uint32_t value) = 0;

  std::vector<DevicePointer> flags_at_others(std::size_t index) const;
  DevicePointer flag(std::size_t board, std::size_t index, std::size_t writer) const {
    return boards_(board) + (index * kernels::kMostInputs + writer) * sizeof(std::uint32_t);
  }

  const Boards boards_;
  const std::size_t size_;
  const std::size_t own_;
  std::array<std::uint64_t, kMarks * kHalves> recorded_{};  ///< times, by index_of()
};

/// Flags in host memory, which streams write and wait for (cuStreamBatchMemOp): while a stream
/// waits, other processes have the GPU.
class StreamFlags final : public FlagSignals {
 public:
  /// `memory`: common to the ranks of the host, of kFlagBytes for each. `pinned`: all of it.
  StreamFlags(std::shared_ptr<const shm::SharedMemory> memory,
              std::shared_ptr<const PinnedRange> pinned, std::size_t size, std::size_t own);

  void release() noexcept override;

 private:
  void write(Stream& stream, const std::vector<DevicePointer>& flags, std::uint32_t value) override;
  void await(Stream& stream, const std::vector<DevicePointer>& flags, std::uint32_t value) override;

  const std::shared_ptr<const shm::SharedMemory> memory_;
  const std::shared_ptr<const PinnedRange> pinned_;
  bool is_released_ = false;
};

/// Flags in the memory of GPUs, which kernels write and look at. For ranks that have a GPU each:
/// processes on one GPU run in turns, and a kernel that waits takes up the whole of its turn.
class KernelFlags final : public FlagSignals {
 public:
  /// `kernels` outlive it. `released`: a word.
  KernelFlags(KernelSet& kernels, PinnedBlock released, Boards boards, std::size_t size,
              std::size_t own);

  void release() noexcept override;

 private:
  void write(Stream& stream, const std::vector<DevicePointer>& flags, std::uint32_t value) override;
  void await(Stream& stream, const std::vector<DevicePointer>& flags, std::uint32_t value) override;

  KernelSet& kernels_;
  const PinnedBlock released_;
};

}  // namespace ronde::cuda
