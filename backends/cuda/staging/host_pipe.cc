// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/staging/host_pipe.h"

#include <algorithm>
#include <utility>

namespace ronde::cuda {
namespace {

constexpr std::size_t kSlots = 3;  ///< pieces at a time: one down, one on the host, one up

}  // namespace

HostPipe::HostPipe(GpuResources& resources, std::shared_ptr<Stream> up, std::size_t piece_bytes,
                   std::atomic<std::uint64_t>& passed)
    : resources_(resources), up_(std::move(up)), piece_bytes_(piece_bytes), passed_(passed) {}

void HostPipe::fetch(Slot& slot, const Passage& passage, const Piece& piece) {
  if (slot.is_going_up) resources_.stream().wait_for(slot.up);
  if (passage.is_copied_down && piece.bytes > 0) {
    resources_.stream().copy(slot.memory.address(), passage.memory + piece.begin, piece.bytes,
                             "copying from the GPU");
  }
  resources_.stream().record(slot.down);
}

Steps HostPipe::pass(Passage passage) {
  const std::size_t each = std::min(piece_bytes_, passage.longest);
  const std::size_t count = each > 0 ? (passage.longest + each - 1) / each : 0;
  const auto piece_of = [&](std::size_t number) {
    const std::size_t begin = number * each;
    return Piece{.memory = slots_[number % slots_.size()].memory.data(),
                 .begin = begin,
                 .bytes = std::min(each, std::max(passage.bytes, begin) - begin),
                 .longest = std::min(each, passage.longest - begin)};
  };
  for (std::size_t slot = 0; slot < std::min(kSlots, count); ++slot) {
    slots_.push_back(
        {resources_.pinned().take(each), resources_.events().take(), resources_.events().take()});
  }
  // Copies to the GPU wait until its memory may be written.
  const Event ready = resources_.events().take();
  resources_.stream().record(ready);
  up_->wait_for(ready);
  for (std::size_t first = 0; first < slots_.size(); ++first) {
    fetch(slots_[first], passage, piece_of(first));
  }
  for (std::size_t number = 0; number < count; ++number) {
    Slot& slot = slots_[number % slots_.size()];
    co_await until([&slot] { return slot.down.is_done(); });
    Steps working = passage.work(piece_of(number));
    co_await working;
    if (const Piece piece = piece_of(number); passage.is_copied_up && piece.bytes > 0) {
      up_->copy(passage.memory + piece.begin, slot.memory.address(), piece.bytes,
                "copying to the GPU");
      up_->record(slot.up);
      slot.is_going_up = true;
      passed_ += piece.bytes;
    }
    const std::size_t next = number + slots_.size();
    if (next < count) fetch(slot, passage, piece_of(next));
  }
  if (!passage.is_copied_up) co_return;
  // Work queued on the resources' stream from now on runs after the copies to the GPU.
  const Event over = resources_.events().take();
  up_->record(over);
  resources_.stream().wait_for(over);
}

Steps HostPipe::drain() {
  for (const Slot& slot : slots_) {
    if (slot.is_going_up) co_await until([&slot] { return slot.up.is_done(); });
  }
  slots_.clear();
}

}  // namespace ronde::cuda
