// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/flag_signals.h"

#include <atomic>
#include <utility>

#include "backends/cuda/addresses.h"

namespace ronde::cuda {
namespace {

/// Further than anybody comes until all are released, and not so far that it seems to be behind.
constexpr std::uint32_t kFarAhead = std::uint32_t{1} << 30;

/// A word that GPUs look at, as the host writes it.
void store(DevicePointer address, std::uint32_t value) noexcept {
  std::atomic_ref(*static_cast<std::uint32_t*>(writable(address)))
      .store(value, std::memory_order_release);
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
  write(stream, flags_at_others(index), ++recorded_[index]);
}

void FlagSignals::wait_for_all(Mark mark, std::size_t half, Stream& stream) {
  const std::size_t index = index_of(mark, half);
  if (recorded_[index] > 0) await(stream, flags_of_others(index), recorded_[index]);
}

StreamFlags::StreamFlags(const std::shared_ptr<const DeviceContext>& context,
                         shm::SharedMemory memory, std::size_t size, std::size_t own)
    : FlagSignals([bytes = memory.bytes().data()](
                      std::size_t rank) { return address_of(bytes + rank * kFlagBytes); },
                  size, own),
      memory_(std::move(memory)),
      pinned_(context, memory_.bytes().data(), memory_.bytes().size()) {}

void StreamFlags::write(Stream& stream, const std::vector<DevicePointer>& flags,
                        std::uint32_t value) {
  stream.write(flags, value);
}

void StreamFlags::await(Stream& stream, const std::vector<DevicePointer>& flags,
                        std::uint32_t value) {
  stream.wait_for(flags, value);
}

/// Once is enough. What another survivor still writes may overwrite it, but is at last the number
/// that is waited for (Note [No wait for nothing]).
void StreamFlags::release() noexcept {
  for (std::size_t index = 0; index < kMarks * kHalves; ++index) {
    for (const DevicePointer flag : flags_of_others(index)) {
      store(flag, recorded(index) + kFarAhead);
    }
  }
}

KernelFlags::KernelFlags(KernelSet& kernels, PinnedBlock released, Boards boards, std::size_t size,
                         std::size_t own)
    : FlagSignals(std::move(boards), size, own), kernels_(kernels), released_(std::move(released)) {
  store(released_.address(), 0);
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
  store(released_.address(), 1);
}

}  // namespace ronde::cuda
