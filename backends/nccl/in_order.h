// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "backends/cuda/workbench.h"
#include "backends/nccl/operation.h"
#include "backends/nccl/reduction_plan.h"

namespace ronde::nccl {

/// The fusion buffer of a reduction that the ranks do themselves: a share of the elements for each
/// rank. Each gives every other one that one's share, and combines its own of all ranks in their
/// order: Note [What NCCL reduces].
struct Shares {
  std::byte* packed = nullptr;    ///< this rank's elements, share after share
  std::byte* received = nullptr;  ///< the ranks' elements of this rank's share
  std::size_t elements = 0;       ///< of a share, those behind the last one included
  std::size_t bytes = 0;          ///< of a share, a multiple of 16

  std::byte* packed_of(std::size_t rank) const noexcept { return packed + rank * bytes; }
  std::byte* received_of(std::size_t rank) const noexcept { return received + rank * bytes; }
};

/// Elements of a share that `elements` of `width` bytes make among the ranks: all shares begin
/// where wide accesses may.
std::size_t share_of(std::size_t elements, std::size_t ranks, std::size_t width);

/// Lays them out, for shares of that many elements (share_of).
Shares lay_out(std::byte* fusion, std::size_t share, std::size_t ranks, std::size_t width);

/// The most elements of a share that there is room for.
std::size_t most_of_share(std::size_t fusion_bytes, std::size_t ranks, std::size_t width);

/// Calls NCCL for the exchange of the shares, but for this rank's own.
void exchange_shares(const Channel& channel, const Shares& shares, std::size_t rank,
                     std::size_t ranks, const std::string& doing);

/// Queues the combining of this rank's share of all ranks, into the first bytes of what is
/// received, which are as far into the buffer on every rank, as windows of NCCL's ask for.
/// `most_inputs`: of a kernel, at least 2; more ranks than that take several rounds.
void reduce_in_order(cuda::Workbench& bench, const Shares& shares, std::size_t rank,
                     std::size_t ranks, const ReductionPlan& plan, std::size_t most_inputs);

}  // namespace ronde::nccl
