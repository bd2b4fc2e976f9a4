// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "backends/device/chunk_layout.h"
#include "backends/nccl/in_order.h"
#include "backends/nccl/lane_operation.h"
#include "backends/nccl/reduction_plan.h"

namespace ronde::nccl {

/// An allreduce over several hosts (Links::is_two_level). Chunk by chunk, the ranks of each host
/// reduce a share each, by NCCL or as Note [What NCCL reduces] says; the owners of a share, one on
/// each host, combine it through host memory; and NCCL gives all shares to the ranks of each host.
///
/// A chunk that is a piece of a single tensor, is not to be changed before, and makes even shares
/// is reduced in the output; the rest is packed. Which of them is this rank's own affair: the
/// others see the same counts.
class TwoLevelAllreduce final : public LaneOperation {
 public:
  TwoLevelAllreduce(Links& links, const AllreduceCall& call);

 private:
  /// Where a chunk is reduced.
  struct Place {
    const std::byte* input = nullptr;
    std::byte* output = nullptr;  ///< share after share
    bool is_packed = true;
  };

  device::Steps run();
  device::Steps reduce_within_host(Place place);
  device::Steps cross(Place place);
  bool is_direct() const;
  Place direct_place() const;
  std::byte* own_share(const Place& place) const noexcept;
  std::size_t most_elements() const noexcept;
  const ReductionPlan& plan() const noexcept { return plan_.within_host; }
  std::size_t width() const noexcept { return size_of(plan().travel); }

  const AllreduceCall call_;
  const std::size_t host_ranks_;
  const std::size_t host_rank_;
  const TwoLevelPlan plan_;
  device::ChunkLayout layout_;
  Shares shares_;  ///< of the chunk, among the ranks of a host
  /// What waits for the backend of the CPU. Where NCCL breaks down meanwhile it lives on until that
  /// one is aborted.
  device::Steps crossing_;
};

}  // namespace ronde::nccl
