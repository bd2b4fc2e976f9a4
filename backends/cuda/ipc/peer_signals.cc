// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/ipc/peer_signals.h"

#include <atomic>
#include <utility>

namespace ronde::cuda {
namespace {

/// Bytes of a flag. A rank's flags lie in the order of the ranks that write them.
constexpr std::size_t kFlag = sizeof(std::uint32_t);
/// Further ahead than any rank gets, but not so far that it counts as behind.
constexpr std::uint32_t kFarAhead = std::uint32_t{1} << 30;

/// Stores to a word that GPUs poll.
void store(std::byte* word, std::uint32_t value) noexcept {
  std::atomic_ref(*reinterpret_cast<std::uint32_t*>(word)).store(value, std::memory_order_release);
}

}  // namespace

PeerSignals::PeerSignals(const std::shared_ptr<const DeviceContext>& context,
                         shm::SharedMemory memory, std::size_t size, std::size_t own)
    : size_(size),
      own_(own),
      flags_([this](std::size_t rank) { return pinned_->address() + rank * kFlagBytes; }),
      memory_(std::move(memory)),
      pinned_(std::make_unique<const PinnedRange>(context, memory_.bytes().data(),
                                                  memory_.bytes().size())) {}

PeerSignals::PeerSignals(KernelSet& kernels, PinnedBlock released, Flags flags, std::size_t size,
                         std::size_t own)
    : size_(size),
      own_(own),
      flags_(std::move(flags)),
      kernels_(&kernels),
      released_(std::move(released)) {
  store(released_.data(), 0);
}

void PeerSignals::record(Stream& stream) {
  ++recorded_;
  std::vector<DevicePointer> at_others;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    if (rank != own_) at_others.push_back(flags_(rank) + own_ * kFlag);
  }
  if (kernels_ != nullptr) {
    kernels_->signal(stream, at_others, recorded_);
  } else {
    stream.write(at_others, recorded_);
  }
}

void PeerSignals::wait_for_all(Stream& stream) {
  std::vector<DevicePointer> of_others;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    if (rank != own_) of_others.push_back(flags_(own_) + rank * kFlag);
  }
  if (kernels_ != nullptr) {
    kernels_->await(stream, of_others, recorded_, released_.address());
  } else if (!is_released_) {
    stream.wait_for(of_others, recorded_);
  }
}

void PeerSignals::release() noexcept {
  if (kernels_ != nullptr) return store(released_.data(), 1);
  is_released_ = true;
  std::byte* const own = memory_.bytes().data() + own_ * kFlagBytes;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    store(own + rank * kFlag, recorded_ + kFarAhead);
  }
}

}  // namespace ronde::cuda
