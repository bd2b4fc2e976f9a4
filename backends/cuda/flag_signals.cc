// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/flag_signals.h"

#include <atomic>
#include <utility>

namespace ronde::cuda {
namespace {

/// Further than anybody comes until all are released, and not so far that it seems to be behind.
constexpr std::uint32_t kFarAhead = std::uint32_t{1} << 30;

/// To a word that GPUs look at.
void store(std::byte* word, std::uint32_t value) noexcept {
  std::atomic_ref(*reinterpret_cast<std::uint32_t*>(word)).store(value, std::memory_order_release);
}

}  // namespace

std::vector<DevicePointer> FlagSignals::flags_at_others(std::size_t index) const {
  std::vector<DevicePointer> flags;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    if (rank != own_) flags.push_back(flag(rank, index, own_));
  }
  return flags;
}

std::vector<DevicePointer> FlagSignals::flags_of_others(std::size_t index) const {
  std::vector<DevicePointer> flags;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    if (rank != own_) flags.push_back(flag(own_, index, rank));
  }
  return flags;
}

void FlagSignals::record(Mark mark, std::size_t half, Stream& stream) {
  const std::size_t index = index_of(mark, half);
  ++recorded_[index];
  write(stream, flags_at_others(index), recorded(index));
}

void FlagSignals::wait_for_all(Mark mark, std::size_t half, Stream& stream) {
  const std::size_t index = index_of(mark, half);
  if (recorded_[index] > 0) await(stream, flags_of_others(index), recorded(index));
}

StreamFlags::StreamFlags(std::shared_ptr<const shm::SharedMemory> memory,
                         std::shared_ptr<const PinnedRange> pinned, std::size_t size,
                         std::size_t own)
    : FlagSignals(
          [boards = pinned->address()](std::size_t rank) { return boards + rank * kFlagBytes; },
          size, own),
      memory_(std::move(memory)),
      pinned_(std::move(pinned)) {}

void StreamFlags::write(Stream& stream, const std::vector<DevicePointer>& flags,
                        std::uint32_t value) {
  stream.write(flags, value);
}

void StreamFlags::await(Stream& stream, const std::vector<DevicePointer>& flags,
                        std::uint32_t value) {
  if (!is_released_) stream.wait_for(flags, value);
}

/// A rank that dies may still write lower numbers over it: to be repeated.
void StreamFlags::release() noexcept {
  is_released_ = true;
  for (std::size_t index = 0; index < kMarks * kHalves; ++index) {
    for (const DevicePointer flag : flags_of_others(index)) {
      store(memory_->bytes().data() + (flag - pinned_->address()), recorded(index) + kFarAhead);
    }
  }
}

KernelFlags::KernelFlags(KernelSet& kernels, PinnedBlock released, Boards boards, std::size_t size,
                         std::size_t own)
    : FlagSignals(std::move(boards), size, own), kernels_(kernels), released_(std::move(released)) {
  store(released_.data(), 0);
}

void KernelFlags::write(Stream& stream, const std::vector<DevicePointer>& flags,
                        std::uint32_t value) {
  kernels_.signal(stream, flags, value);
}

void KernelFlags::await(Stream& stream, const std::vector<DevicePointer>& flags,
                        std::uint32_t value) {
  kernels_.await(stream, flags, value, released_.address());
}

void KernelFlags::release() noexcept {
  store(released_.data(), 1);
}

}  // namespace ronde::cuda
