// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/reductions.h"

#include <algorithm>
#include <numeric>

#include "ronde/plugin/segment_cursor.h"

namespace ronde::nccl {
namespace {

constexpr std::size_t kAlignment = 16;

/// What it asks for of the elements.
AllreduceCall as_allreduce(const ReducescatterCall& call) {
  return {.segments = {},
          .dtype = call.dtype,
          .op = call.op,
          .prescale = call.prescale,
          .postscale = call.postscale,
          .place = call.place,
          .average_over = call.average_over};
}

}  // namespace

ReductionWork::Shares ReductionWork::lay_out(std::byte* buffer,
                                             std::size_t elements) const noexcept {
  const std::size_t bytes = elements * width();
  return {buffer, buffer + size() * bytes, elements, bytes};
}

std::size_t ReductionWork::share_of(std::size_t elements) const noexcept {
  const std::size_t unit = plan_.travel.alignment();
  const std::size_t share = (elements + size() - 1) / size();
  return (share + unit - 1) / unit * unit;
}

std::size_t ReductionWork::most_of_share() const noexcept {
  return fusion_bytes() / (2 * size() * kAlignment) * plan_.travel.alignment();
}

void ReductionWork::combine(const Shares& shares) const {
  bench().stream().copy(cuda::address_of(shares.received + rank() * shares.bytes),
                        cuda::address_of(shares.packed + rank() * shares.bytes), shares.bytes,
                        doing());
  call_together([&] {
    for (std::size_t i = 1; i < size(); ++i) {
      // Each begins with another one.
      const std::size_t to = (rank() + i) % size();
      const std::size_t from = (rank() + size() - i) % size();
      call(api().send, shares.packed + to * shares.bytes, shares.bytes, kUint8,
           static_cast<int>(to));
      call(api().recv, shares.received + from * shares.bytes, shares.bytes, kUint8,
           static_cast<int>(from));
    }
  });
  const cuda::DevicePointer received = cuda::address_of(shares.received);
  bench().kernels().reduce(bench().stream(), received, {received, shares.bytes, size()},
                           shares.elements, plan_.travel.reduction());
}

void ReductionWork::pack(const Moves& moves, bool is_scaled_by_nccl) const {
  move(moves, {.from = plan_.travel.from,
               .to = plan_.travel.dtype,
               .scaling = is_scaled_by_nccl ? Scaling{} : plan_.pack,
               .op = plan_.travel.op});
}

/// The ranks' own combining leaves it scaled, with the one NaN that there is.
void ReductionWork::unpack(const Moves& moves) const {
  move(moves, {.from = plan_.travel.dtype,
               .to = plan_.travel.from,
               .scaling = plan_.by_nccl ? plan_.travel.final : Scaling{},
               .canonical = plan_.by_nccl});
}

Allreduce::Allreduce(Links& links, const AllreduceCall& call)
    : ReductionWork(links, call,
                    "reducing " + std::to_string(call.segments.size()) + " tensor(s) of " +
                        elements_text(total_elements(call.segments), call.dtype)),
      segments_(call.segments.begin(), call.segments.end()),
      layout_(segments_, plan().by_nccl ? fusion_bytes() / width() : most_of_share() * size(),
              plan().travel.alignment()) {}

void Allreduce::issue() {
  while (layout_.next()) {
    counts().bytes += layout_.extent() * width();
    if (plan().by_nccl) {
      reduce_by_nccl();
    } else {
      combine_chunk();
    }
  }
}

Moves Allreduce::into(std::byte* buffer) const {
  return moves_in(layout_.pieces(), cuda::address_of(buffer), tensor_width(), width());
}

Moves Allreduce::out_of(const std::byte* buffer) const {
  return moves_out(layout_.pieces(), cuda::address_of(buffer), tensor_width(), width());
}

void Allreduce::reduce_by_nccl() const {
  const Operator op(channel(), plan(), layout_.pieces().size() == 1, doing());
  const gpu::Piece& first = layout_.pieces().front();
  const Segment& segment = *first.segment;
  if (op.is_plain() && segment.input != nullptr && segment.output != nullptr) {
    ++counts().direct_chunks;
    return call(api().all_reduce, cuda::at(segment.input, first.offset, width()),
                cuda::at(segment.output, first.offset, width()), first.count, op.type(),
                op.number());
  }
  ++counts().packed_chunks;
  std::byte* const buffer = op.is_plain() ? unregistered() : fusion();
  pack(into(buffer), op.scales());
  call(api().all_reduce, buffer, buffer, layout_.extent(), op.type(), op.number());
  unpack(out_of(buffer));
}

void Allreduce::combine_chunk() const {
  ++counts().chunks_in_order;
  const Shares shares = lay_out(fusion(), share_of(layout_.extent()));
  pack(into(shares.packed));
  combine(shares);
  call(api().all_gather, shares.received, shares.packed, shares.elements * width(), kUint8);
  unpack(out_of(shares.packed));
}

Reducescatter::Reducescatter(Links& links, const ReducescatterCall& call)
    : ReductionWork(
          links, as_allreduce(call),
          "reducing and scattering " +
              elements_text(std::accumulate(call.counts.begin(), call.counts.end(), std::size_t{0}),
                            call.dtype)),
      input_(call.input),
      output_(call.output),
      counts_(call.counts.begin(), call.counts.end()) {}

void Reducescatter::issue() {
  // What NCCL reduces needs a place for the result behind the shares.
  const std::size_t most =
      plan().by_nccl ? fusion_bytes() / ((size() + 1) * width()) : most_of_share();
  const auto [shortest, longest] = std::minmax_element(counts_.begin(), counts_.end());
  for (std::size_t done = 0; done < *longest; done += most) {
    const std::size_t share = std::min(most, *longest - done);
    counts().bytes += share * size() * width();
    if (plan().by_nccl) {
      reduce_by_nccl({counts_, done, share}, *shortest == *longest && *longest <= most);
    } else {
      combine_chunk({counts_, done, share_of(share * size())});
    }
  }
}

void Reducescatter::reduce_by_nccl(const cuda::RankParts& parts, bool is_single) const {
  const Operator op(channel(), plan(), is_single, doing());
  if (op.is_plain() && input_ != nullptr && output_ != nullptr) {
    ++counts().direct_chunks;
    return call(api().reduce_scatter, input_, output_, parts.each, op.type(), op.number());
  }
  ++counts().packed_chunks;
  const Shares shares = lay_out(op.is_plain() ? unregistered() : fusion(), parts.each);
  pack(into(shares, parts), op.scales());
  call(api().reduce_scatter, shares.packed, shares.received, parts.each, op.type(), op.number());
  keep_part(shares, parts);
}

void Reducescatter::combine_chunk(const cuda::RankParts& parts) const {
  ++counts().chunks_in_order;
  const Shares shares = lay_out(fusion(), parts.each);
  pack(into(shares, parts));
  combine(shares);
  keep_part(shares, parts);
}

Moves Reducescatter::into(const Shares& shares, const cuda::RankParts& parts) const {
  return parts.moves_in(input_, tensor_width(), cuda::address_of(shares.packed), width());
}

void Reducescatter::keep_part(const Shares& shares, const cuda::RankParts& parts) const {
  if (output_ == nullptr) return;
  unpack({{shares.received, cuda::at(output_, parts.done, tensor_width()), parts.piece(rank())}});
}

}  // namespace ronde::nccl
