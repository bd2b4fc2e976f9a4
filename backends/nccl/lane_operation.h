// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/segment_mover.h"
#include "backends/device/steps.h"
#include "backends/nccl/links.h"

namespace ronde::nccl {

/// So many elements further.
/// @{
inline const void* advanced(const void* memory, std::size_t bytes) {
  return static_cast<const std::byte*>(memory) + bytes;
}
inline void* advanced(void* memory, std::size_t bytes) {
  return static_cast<std::byte*>(memory) + bytes;
}
/// @}

/// Where each rank's part begins, in elements.
inline std::vector<std::size_t> begins_of(std::span<const std::size_t> counts) {
  std::vector<std::size_t> begins(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), std::size_t{0});
  return begins;
}

/// An operation that is queued on a channel's stream.
class ChannelOperation : public device::SteppedOperation {
 protected:
  /// `doing`: for texts, as in "reducing 3 tensors". All but the text outlive it.
  ChannelOperation(Links& links, const Channel& channel, std::string doing)
      : links_(links), channel_(channel), doing_(std::move(doing)) {}

  Links& links() const noexcept { return links_; }
  const Channel& channel() const noexcept { return channel_; }
  cuda::Workbench& bench() const noexcept { return channel_.bench(); }
  const NcclApi& api() const noexcept { return channel_.communicator()->api(); }
  const std::string& doing() const noexcept { return doing_; }

  /// The first step: what is queued from now on runs after all that the buffers wait for.
  void enter(const Placement& place) { bench().run_after(place.after); }
  /// The last step: what is queued now is all.
  void leave() { set_event(watched(links_.streams().mark(bench().stream()), channel_, doing_)); }

  /// As Channel::call.
  template <typename... Arguments, typename... Given>
  void call(const vendor::Entry<Result, Arguments...>& function, Given... given) const {
    channel_.call(doing_, function, given...);
  }
  /// Whether what was called is in the stream, so that what uses its result may be queued.
  bool is_issued() const { return channel_.communicator()->is_issued(doing_); }

  void move(std::span<const cuda::SegmentMover::Move> moves,
            const cuda::SegmentMover::How& how) const {
    bench().mover().move(moves, how);
  }

 private:
  Links& links_;
  const Channel& channel_;
  const std::string doing_;
};

/// One of all ranks, on the lane whose turn it is.
class LaneOperation : public ChannelOperation {
 protected:
  LaneOperation(Links& links, std::string doing)
      : LaneOperation(links, links.next_lane(), std::move(doing)) {}

  std::size_t size() const noexcept { return links().size(); }
  std::size_t rank() const noexcept { return links().rank(); }
  std::size_t fusion_bytes() const noexcept { return bench().fusion_bytes(); }

  /// Makes and registers the fusion buffer if it is not yet. NCCL has to have finished what was
  /// called before.
  void prepare_fusion() { fusion_ = lane_.fusion->use(channel()); }
  /// After prepare_fusion().
  std::byte* fusion() const noexcept { return fusion_; }

 private:
  LaneOperation(Links& links, Lane& lane, std::string doing)
      : ChannelOperation(links, lane.channel, std::move(doing)), lane_(lane) {}

  Lane& lane_;
  std::byte* fusion_ = nullptr;
};

}  // namespace ronde::nccl
