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

void ReductionWork::pack(const Moves& moves, std::byte* buffer, std::byte* beside,
                         bool scales_by_nccl) const {
  const DataType rounded = plan_.rounded.value_or(plan_.travel);
  const Scaling scaling = scales_by_nccl ? Scaling{} : plan_.pack;
  const SegmentMover::How how{
      .from = plan_.from, .to = rounded, .scaling = scaling, .op = plan_.op};
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
    if (plan().by_nccl) {
      reduce_by_nccl();
    } else {
      combine_shares();
    }
  }
}

void Allreduce::reduce_by_nccl() {
  const bool is_single = layout_.pieces().size() == 1;
  const Operator op(channel(), plan(), is_single, doing());
  const DataTypeNumber type = number_of(plan().travel).value();
  const device::Piece& first = layout_.pieces().front();
  const Segment& segment = *first.segment;
  if (plan().is_plain(is_single) && segment.input != nullptr && segment.output != nullptr) {
    ++counts().direct_chunks;
    return call(api().all_reduce, cuda::at(segment.input, first.offset, width()),
                cuda::at(segment.output, first.offset, width()), first.count, type, op.number());
  }
  ++counts().packed_chunks;
  shares_ = {.packed = plan().is_plain(is_single) ? unregistered() : fusion()};
  pack_chunk(plan().scales_by_nccl(is_single));
  call(api().all_reduce, shares_.packed, shares_.packed, layout_.extent(), type, op.number());
  unpack_chunk();
}

void Allreduce::combine_shares() {
  ++counts().chunks_in_order;
  shares_ = lay_out(fusion(), share_of(layout_.extent(), size(), width()), size(), width());
  pack_chunk(false);
  exchange_shares(channel(), shares_, rank(), size(), doing());
  reduce_in_order(bench(), shares_, rank(), size(), plan(), options().most_inputs);
  call(api().all_gather, shares_.received, shares_.packed, shares_.bytes, kUint8);
  unpack_chunk();
}

void Allreduce::pack_chunk(bool scales_by_nccl) const {
  pack(moves_in(layout_.pieces(), shares_.packed, size_of(plan().from), width()), shares_.packed,
       shares_.received, scales_by_nccl);
}

void Allreduce::unpack_chunk() const {
  unpack(moves_out(layout_.pieces(), shares_.packed, size_of(plan().from), width()), shares_.packed,
         shares_.received);
}

Reducescatter::Reducescatter(Links& links, const ReducescatterCall& call)
    : ReductionWork(links, call.place, text_of(call), request_of(call, links.shared()->size)),
      counts_(call.counts.begin(), call.counts.end()),
      call_(call),
      longest_(*std::max_element(call.counts.begin(), call.counts.end())),
      begin_(begins_of(call.counts)) {}

void Reducescatter::issue() {
  // What NCCL reduces needs a place for the result behind the shares.
  const std::size_t most =
      plan().by_nccl ? fusion_bytes() / ((size() + 1) * width()) : most_share();
  for (; done_ < longest_; done_ += most) {
    share_ = std::min(most, longest_ - done_);
    counts().bytes += share_ * size() * width();
    const Operator op(channel(), plan(), is_single(), doing());
    const bool is_plain = plan().is_plain(is_single());
    if (is_plain && call_.input != nullptr && call_.output != nullptr) {
      ++counts().direct_chunks;
      call(api().reduce_scatter, call_.input, call_.output, share_,
           number_of(plan().travel).value(), op.number());
      continue;
    }
    const bool scales_by_nccl = plan().scales_by_nccl(is_single());
    if (!plan().by_nccl) share_ = share_of(share_ * size(), size(), width());
    shares_ = lay_out(is_plain ? unregistered() : fusion(), share_, size(), width());
    pack_chunk(scales_by_nccl);
    if (plan().by_nccl) {
      ++counts().packed_chunks;
      call(api().reduce_scatter, shares_.packed, shares_.received, share_,
           number_of(plan().travel).value(), op.number());
    } else {
      ++counts().chunks_in_order;
      exchange_shares(channel(), shares_, rank(), size(), doing());
      reduce_in_order(bench(), shares_, rank(), size(), plan(), options().most_inputs);
    }
    unpack_chunk();
  }
}

/// All is in one chunk, where equal parts lie as in the tensor. Ranks without memory for it see it
/// alike.
bool Reducescatter::is_single() const {
  return done_ == 0 && share_ == longest_ &&
         std::all_of(counts_.begin(), counts_.end(),
                     [&](std::size_t count) { return count == longest_; });
}

std::size_t Reducescatter::piece_of(std::size_t rank) const {
  const std::size_t count = counts_[rank];
  return count > done_ ? std::min(count - done_, share_) : 0;
}

void Reducescatter::pack_chunk(bool scales_by_nccl) const {
  Moves moves;
  for (std::size_t to = 0; to < size(); ++to) {
    const std::size_t from = begin_[to] + done_;
    moves.push_back(
        {call_.input != nullptr ? cuda::at(call_.input, from, size_of(plan().from)) : nullptr,
         shares_.packed_of(to), piece_of(to)});
  }
  pack(moves, shares_.packed, shares_.received, scales_by_nccl);
}

void Reducescatter::unpack_chunk() const {
  if (call_.output == nullptr) return;
  const Moves moves = {
      {shares_.received, cuda::at(call_.output, done_, size_of(plan().from)), piece_of(rank())}};
  unpack(moves, shares_.received, shares_.packed);
}

}  // namespace ronde::nccl
