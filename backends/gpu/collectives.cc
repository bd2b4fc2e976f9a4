// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/collectives.h"

#include <algorithm>

namespace ronde::cuda {

Collectives::Collectives(GpuResources& resources, std::atomic<std::uint64_t>& packed_bytes,
                         std::size_t ranks, std::size_t own, std::size_t half_bytes)
    : resources_(resources),
      ranks_(ranks),
      own_(own),
      half_bytes_(half_bytes),
      parts_(ranks),
      packed_bytes_(packed_bytes) {}

std::size_t Collectives::elements_of_part(std::size_t width) const noexcept {
  return half_bytes_ / ranks_ / kPartAlignment * kPartAlignment / width;
}

gpu::ChunkLayout Collectives::layout_of(const AllreduceCall& call, const WireFormat& wire) const {
  return {call.segments, elements_of_part(wire.width()) * ranks_, wire.alignment()};
}

void Collectives::pack(const gpu::ChunkLayout& layout, const WireFormat& wire) {
  resources_.move(moves_in(layout.pieces(), packed(), wire), way_in(wire));
  packed_bytes_ += layout.extent() * wire.width();
}

void Collectives::unpack(void* output, const RankParts& parts, const WireFormat& wire) {
  if (output == nullptr) return;
  Moves moves;
  const auto add = [&](std::size_t rank, std::size_t element) {
    moves.push_back(
        {pointer_to(parts_[rank]), at(output, element, wire.width()), parts.piece(rank)});
  };
  parts.for_each(add, source(0));
  resources_.move(moves, way_out(wire, traffic()));
}

void Collectives::reduce(DevicePointer target, std::size_t count, const WireFormat& wire) {
  resources_.kernels().reduce(resources_.stream(), target, parts_, count, wire.reduction(),
                              traffic());
}

std::vector<std::size_t> Collectives::shares_of(std::size_t extent, const WireFormat& wire) const {
  const std::size_t unit = wire.alignment();
  const std::size_t each = ((extent + ranks_ - 1) / ranks_ + unit - 1) / unit * unit;
  std::vector<std::size_t> shares(ranks_);
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    shares[rank] = std::min(each, extent - std::min(extent, rank * each));
  }
  return shares;
}

Steps Collectives::allreduce(AllreduceCall call) {
  const WireFormat wire = wire_format_of(call.reduction(), call.wire_dtype);
  gpu::ChunkLayout layout = layout_of(call, wire);
  while (layout.next()) {
    begin_chunk();
    pack(layout, wire);
    co_await two_shot(layout, wire);
  }
}

Steps Collectives::two_shot(const gpu::ChunkLayout& layout, const WireFormat& wire) {
  const std::vector<std::size_t> shares = shares_of(layout.extent(), wire);
  const std::size_t each = shares.front();
  const std::vector<std::size_t> own(ranks_, shares[own_]);
  const RankParts of_all{shares, 0, each};
  const RankParts of_own{own, 0, each};
  const std::size_t width = wire.width();
  co_await exchange(Pattern::Scatter, of_all, of_own, width);
  reduce(packed() + own_ * each * width, shares[own_], wire);
  co_await exchange(Pattern::Gather, of_own, of_all, width);
  Moves moves;
  for (std::size_t turn = 0; turn < ranks_; ++turn) {
    const std::size_t rank = source(turn);
    const std::size_t begin = rank * each;
    const Moves of_share = moves_out(layout.pieces(), parts_[rank] - begin * width, wire,
                                     {begin, begin + shares[rank]});
    moves.insert(moves.end(), of_share.begin(), of_share.end());
  }
  resources_.move(moves, way_out(wire, traffic()));
}

Steps Collectives::allgather(AllgatherCall call) {
  begin_operation();
  const WireFormat wire{.from = call.dtype, .dtype = call.dtype};
  const std::size_t width = wire.width();
  const std::size_t each = elements_of_part(width);
  const std::vector<std::size_t> own(ranks_, call.counts[own_]);
  for (std::size_t done = 0; done < std::ranges::max(call.counts); done += each) {
    begin_chunk();
    const RankParts given{own, done, each};
    const RankParts parts{call.counts, done, each};
    if (const std::size_t count = parts.piece(own_); count > 0) {
      const KernelSet::Move in{.source = at(call.input, done, width),
                               .target = writable(packed() + own_ * each * width),
                               .count = count};
      resources_.move({&in, 1}, way_in(wire));
    }
    co_await exchange(Pattern::Gather, given, parts, width);
    unpack(call.output, parts, wire);
  }
  co_await end_operation();
}

Steps Collectives::alltoall(AlltoallCall call) {
  begin_operation();
  const WireFormat wire{.from = call.dtype, .dtype = call.dtype};
  const std::size_t width = wire.width();
  const std::size_t each = elements_of_part(width);
  for (std::size_t done = 0; done < call.largest_count; done += each) {
    begin_chunk();
    const RankParts given{call.send_counts, done, each};
    const RankParts parts{call.receive_counts, done, each};
    resources_.move(given.moves_in(call.input, packed(), wire), way_in(wire));
    co_await exchange(Pattern::Scatter, given, parts, width);
    unpack(call.output, parts, wire);
  }
  co_await end_operation();
}

Steps Collectives::reducescatter(ReducescatterCall call) {
  begin_operation();
  const WireFormat wire = wire_format_of(call.reduction());
  const std::size_t width = wire.width();
  const std::size_t each = elements_of_part(width);
  const std::vector<std::size_t> own(ranks_, call.counts[own_]);
  for (std::size_t done = 0; done < std::ranges::max(call.counts); done += each) {
    begin_chunk();
    const RankParts given{call.counts, done, each};
    const RankParts parts{own, done, each};
    const std::size_t count = parts.piece(own_);
    resources_.move(given.moves_in(call.input, packed(), wire), way_in(wire));
    co_await exchange(Pattern::Scatter, given, parts, width);
    if (call.output == nullptr || count == 0) continue;
    void* const output = at(call.output, done, size_of(wire.from));
    const bool is_moved = wire.from != wire.dtype || address_of(output) % width != 0;
    // No other rank reads that part of this rank's half.
    const DevicePointer target = is_moved ? packed() + own_ * each * width : address_of(output);
    reduce(target, count, wire);
    const KernelSet::Move out{.source = pointer_to(target), .target = output, .count = count};
    if (is_moved) resources_.move({&out, 1}, way_out(wire));
  }
  co_await end_operation();
}

}  // namespace ronde::cuda
