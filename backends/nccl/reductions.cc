// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/reductions.h"

#include <algorithm>
#include <numeric>

#include "ronde/segment_cursor.h"

namespace ronde::nccl {
namespace {

using cuda::SegmentMover;

std::vector<std::size_t> begins_of(std::span<const std::size_t> counts) {
  std::vector<std::size_t> begins(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), std::size_t{0});
  return begins;
}

ReductionRequest request_of(const AllreduceCall& call, std::size_t ranks) {
  return {.dtype = call.dtype,
          .wire_dtype = call.wire_dtype,
          .op = call.op,
          .prescale = call.prescale,
          .postscale = call.postscale,
          .divisor = call.divisor(ranks)};
}

ReductionRequest request_of(const ReducescatterCall& call, std::size_t ranks) {
  return {.dtype = call.dtype,
          .wire_dtype = {},
          .op = call.op,
          .prescale = call.prescale,
          .postscale = call.postscale,
          .divisor = call.divisor(ranks)};
}

std::string text_of(const AllreduceCall& call) {
  return "reducing " + std::to_string(call.segments.size()) + " tensor(s) of " +
         std::to_string(total_elements(call.segments)) + " elements of " +
         std::string(to_string(call.dtype));
}

std::string text_of(const ReducescatterCall& call) {
  const std::size_t total = std::accumulate(call.counts.begin(), call.counts.end(), std::size_t{0});
  return "reducing and scattering " + std::to_string(total) + " elements of " +
         std::string(to_string(call.dtype));
}

/// `memory` is in `buffer`: the place beside that is as far from there.
std::byte* beside_of(const void* memory, const std::byte* buffer, std::byte* beside) {
  return beside + (static_cast<const std::byte*>(memory) - buffer);
}

}  // namespace

void ReductionWork::pack(const Moves& moves, std::byte* buffer, std::byte* beside) const {
  const DataType rounded = plan_.rounded.value_or(plan_.travel);
  const SegmentMover::How how{
      .from = plan_.from, .to = rounded, .scaling = plan_.pack, .op = plan_.op};
  if (!plan_.rounded) return move(moves, how);
  Moves first = moves;
  Moves second = moves;
  for (std::size_t i = 0; i < moves.size(); ++i) {
    first[i].target = beside_of(moves[i].target, buffer, beside);
    second[i].source = first[i].target;
  }
  move(first, how);
  move(second, {.from = rounded, .to = plan_.travel});
}

void ReductionWork::unpack(const Moves& moves, std::byte* buffer, std::byte* beside) const {
  const DataType rounded = plan_.rounded.value_or(plan_.travel);
  // The ranks' own combining leaves it scaled, with the one NaN that there is.
  SegmentMover::How how{.from = rounded, .to = plan_.from};
  if (plan_.by_nccl) {
    how.scaling = plan_.final;
    how.canonical = true;
  }
  if (!plan_.rounded) return move(moves, how);
  Moves first = moves;
  Moves second = moves;
  for (std::size_t i = 0; i < moves.size(); ++i) {
    first[i].target = beside_of(moves[i].source, buffer, beside);
    second[i].source = first[i].target;
  }
  move(first, {.from = plan_.travel, .to = rounded});
  move(second, how);
}

Allreduce::Allreduce(Links& links, const AllreduceCall& call)
    : ReductionWork(links, call.place, text_of(call), request_of(call, links.shared()->size)),
      owned_(call),
      layout_(call_.segments, plan().by_nccl ? fusion_bytes() / width() : most_share() * size(),
              16 / width()) {}

void Allreduce::issue() {
  while (layout_.next()) {
    counts().bytes += layout_.extent() * width();
    if (is_direct()) {
      ++counts().direct_chunks;
      reduce_directly();
      scale_directly();
      continue;
    }
    shares_ = lay_out(fusion(), share_of(layout_.extent(), size(), width()), size(), width());
    pack_chunk();
    if (plan().by_nccl) {
      ++counts().packed_chunks;
      call(api().all_reduce, fusion(), fusion(), layout_.extent(), number_of(plan().travel).value(),
           number_of(plan().op));
    } else {
      ++counts().chunks_in_order;
      exchange_shares(channel(), shares_, rank(), size(), doing());
      reduce_in_order(bench(), shares_, rank(), size(), plan(), options().most_inputs);
      call(api().all_gather, shares_.packed_of(rank()), shares_.packed, shares_.bytes, kUint8);
    }
    unpack_chunk();
  }
}

bool Allreduce::is_direct() const {
  const std::span<const device::Piece> pieces = layout_.pieces();
  return plan().by_nccl && plan().pack.is_identity() && pieces.size() == 1 &&
         pieces.front().segment->input != nullptr && pieces.front().segment->output != nullptr;
}

void Allreduce::reduce_directly() {
  const device::Piece& piece = layout_.pieces().front();
  call(api().all_reduce, cuda::at(piece.segment->input, piece.offset, width()),
       cuda::at(piece.segment->output, piece.offset, width()), piece.count,
       number_of(plan().travel).value(), number_of(plan().op));
}

void Allreduce::scale_directly() const {
  if (plan().final.is_identity()) return;
  const device::Piece& piece = layout_.pieces().front();
  void* const result = cuda::at(piece.segment->output, piece.offset, width());
  const Moves in_place{{result, result, piece.count}};
  move(in_place, {.from = plan().from,
                  .to = plan().from,
                  .scaling = plan().final,
                  .op = plan().op,
                  .canonical = true});
}

void Allreduce::pack_chunk() const {
  pack(moves_in(layout_.pieces(), fusion(), size_of(plan().from), width()), fusion(),
       shares_.received);
}

void Allreduce::unpack_chunk() const {
  unpack(moves_out(layout_.pieces(), fusion(), size_of(plan().from), width()), fusion(),
         shares_.received);
}

Reducescatter::Reducescatter(Links& links, const ReducescatterCall& call)
    : ReductionWork(links, call.place, text_of(call), request_of(call, links.shared()->size)),
      counts_(call.counts.begin(), call.counts.end()),
      call_(call),
      longest_(*std::max_element(call.counts.begin(), call.counts.end())),
      begin_(begins_of(call.counts)) {}

void Reducescatter::issue() {
  const std::size_t most = plan().by_nccl ? fusion_bytes() / (size() * width()) : most_share();
  for (; done_ < longest_; done_ += most) {
    share_ = std::min(most, longest_ - done_);
    counts().bytes += share_ * size() * width();
    if (is_direct()) {
      ++counts().direct_chunks;
      call(api().reduce_scatter, call_.input, call_.output, share_,
           number_of(plan().travel).value(), number_of(plan().op));
      if (!plan().final.is_identity()) {
        const Moves in_place{{call_.output, call_.output, share_}};
        move(in_place, {.from = plan().from,
                        .to = plan().from,
                        .scaling = plan().final,
                        .op = plan().op,
                        .canonical = true});
      }
      continue;
    }
    if (!plan().by_nccl) share_ = share_of(share_ * size(), size(), width());
    shares_ = lay_out(fusion(), share_, size(), width());
    pack_chunk();
    if (plan().by_nccl) {
      ++counts().packed_chunks;
      call(api().reduce_scatter, shares_.packed, shares_.packed_of(rank()), share_,
           number_of(plan().travel).value(), number_of(plan().op));
    } else {
      ++counts().chunks_in_order;
      exchange_shares(channel(), shares_, rank(), size(), doing());
      reduce_in_order(bench(), shares_, rank(), size(), plan(), options().most_inputs);
    }
    unpack_chunk();
  }
}

/// Only where all fits into one chunk, so that the ranks that have no memory for it can take part.
bool Reducescatter::is_direct() const {
  const bool is_whole = done_ == 0 && share_ == longest_;
  const bool is_even = std::all_of(counts_.begin(), counts_.end(),
                                   [&](std::size_t count) { return count == longest_; });
  return plan().by_nccl && plan().pack.is_identity() && is_whole && is_even &&
         call_.input != nullptr && call_.output != nullptr;
}

std::size_t Reducescatter::piece_of(std::size_t rank) const {
  const std::size_t count = counts_[rank];
  return count > done_ ? std::min(count - done_, share_) : 0;
}

void Reducescatter::pack_chunk() const {
  Moves moves;
  for (std::size_t to = 0; to < size(); ++to) {
    const std::size_t from = begin_[to] + done_;
    moves.push_back(
        {call_.input != nullptr ? cuda::at(call_.input, from, size_of(plan().from)) : nullptr,
         shares_.packed_of(to), piece_of(to)});
  }
  pack(moves, shares_.packed, shares_.received);
}

void Reducescatter::unpack_chunk() const {
  if (call_.output == nullptr) return;
  const Moves moves = {{shares_.packed_of(rank()),
                        cuda::at(call_.output, done_, size_of(plan().from)), piece_of(rank())}};
  unpack(moves, shares_.packed, shares_.received);
}

}  // namespace ronde::nccl
