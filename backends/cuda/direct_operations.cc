// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/direct_operations.h"

#include <algorithm>
#include <utility>

#include "backends/cuda/addresses.h"

namespace ronde::cuda {
namespace {

/// Bytes at which parts begin, so that all is read and written in the widest steps.
constexpr std::size_t kAlignment = 16;

constexpr std::size_t half_of(std::size_t fusion_bytes) noexcept {
  return fusion_bytes / 2 / kAlignment * kAlignment;
}

constexpr std::size_t round_up(std::size_t value, std::size_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

DirectOperations::DirectOperations(Workbench& bench, DirectLink& link, CudaCounters& counters)
    : bench_(bench),
      link_(link),
      counters_(counters),
      ranks_(link.size()),
      own_(link.own()),
      half_bytes_(half_of(bench.fusion_bytes())) {}

std::size_t DirectOperations::elements_of_part(std::size_t width) const noexcept {
  return half_bytes_ / ranks_ / kAlignment * kAlignment / width;
}

Travel DirectOperations::travel_for(Travel travel) const {
  return ranks_ > bench_.kernels().most_inputs() ? in_steps(travel) : travel;
}

void DirectOperations::pack(const device::ChunkLayout& layout, const Travel& travel) {
  bench_.mover().move(moves_in(layout.pieces(), packed(), size_of(travel.from), travel.width()),
                      way_in(travel));
  counters_.packed_bytes.fetch_add(layout.extent() * travel.width(), std::memory_order_relaxed);
}

void DirectOperations::unpack_parts(void* output, const RankParts& parts, const Travel& travel) {
  const std::size_t stride = parts.each * travel.width();
  const auto source_of = [&](std::size_t rank) { return received() + rank * stride; };
  bench_.mover().move(parts.moves_out(source_of, output, travel.width()), way_out(travel));
}

device::Steps DirectOperations::exchange(Exchange exchange) {
  co_await bench_.reach();
  const DevicePointer own_from = exchange.from + own_ * exchange.from_stride;
  const DevicePointer own_to = exchange.to + own_ * exchange.to_stride;
  const std::size_t own_bytes = exchange.bytes_to(own_);
  if (own_bytes > 0 && own_from != own_to) {
    bench_.stream().copy(own_to, own_from, own_bytes, "copying within the GPU");
  }
  for (std::size_t i = 1; i < ranks_; ++i) {
    // Each begins with another one.
    const std::size_t from = (own_ + ranks_ - i) % ranks_;
    const std::size_t to = (own_ + i) % ranks_;
    if (const std::size_t bytes = exchange.bytes_from(from); bytes > 0) {
      link_.receive(from, exchange.to + from * exchange.to_stride, bytes);
    }
    if (const std::size_t bytes = exchange.bytes_to(to); bytes > 0) {
      link_.send(to, exchange.from + to * exchange.from_stride, bytes);
    }
  }
  co_await device::until([this] { return link_.have_ended(); });
}

void DirectOperations::reduce(std::size_t part_bytes, DevicePointer target, std::size_t count,
                              const Travel& travel) {
  std::vector<DevicePointer> inputs;
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    inputs.push_back(received() + rank * part_bytes);
  }
  bench_.kernels().reduce(bench_.stream(), target, inputs, count, travel.reduction());
}

device::Steps DirectOperations::allreduce(AllreduceCall call) {
  const Travel travel = travel_for(travel_of(call.dtype, call.op, call.prescale, call.postscale,
                                             call.divisor(ranks_), call.wire_dtype));
  const std::size_t width = travel.width();
  device::ChunkLayout layout(call.segments, elements_of_part(width) * ranks_, travel.alignment());
  while (layout.next()) {
    const std::size_t share = round_up((layout.extent() + ranks_ - 1) / ranks_, travel.alignment());
    const std::size_t bytes = share * width;
    const auto one_share = [bytes](std::size_t) { return bytes; };
    pack(layout, travel);
    device::Steps scattering = exchange({.from = packed(),
                                         .from_stride = bytes,
                                         .bytes_to = one_share,
                                         .to = received(),
                                         .to_stride = bytes,
                                         .bytes_from = one_share});
    co_await scattering;
    const DevicePointer own_share = packed() + own_ * bytes;
    reduce(bytes, own_share, share, travel);
    device::Steps gathering = exchange({.from = own_share,
                                        .bytes_to = one_share,
                                        .to = packed(),
                                        .to_stride = bytes,
                                        .bytes_from = one_share});
    co_await gathering;
    bench_.mover().move(moves_out(layout.pieces(), packed(), size_of(travel.from), travel.width()),
                        way_out(travel));
  }
}

device::Steps DirectOperations::allgather(AllgatherCall call) {
  const Travel travel{.from = call.dtype, .dtype = call.dtype};
  const std::size_t width = size_of(call.dtype);
  const std::size_t most = *std::max_element(call.counts.begin(), call.counts.end());
  const std::size_t each = elements_of_part(width);
  for (std::size_t done = 0; done < most; done += each) {
    const RankParts parts{call.counts, done, each};
    const std::size_t own = parts.piece(own_);
    if (own > 0) {
      const SegmentMover::Move in{
          .source = at(call.input, done, width), .target = writable(packed()), .count = own};
      bench_.mover().move({&in, 1}, way_in(travel));
    }
    device::Steps exchanging =
        exchange({.from = packed(),
                  .bytes_to = [&](std::size_t) { return own * width; },
                  .to = received(),
                  .to_stride = each * width,
                  .bytes_from = [&](std::size_t rank) { return parts.piece(rank) * width; }});
    co_await exchanging;
    unpack_parts(call.output, parts, travel);
  }
}

device::Steps DirectOperations::alltoall(AlltoallCall call) {
  const Travel travel{.from = call.dtype, .dtype = call.dtype};
  const std::size_t width = size_of(call.dtype);
  const std::size_t each = elements_of_part(width);
  const std::size_t stride = each * width;
  for (std::size_t done = 0; done < call.largest_count; done += each) {
    const RankParts sent{call.send_counts, done, each};
    const RankParts come{call.receive_counts, done, each};
    bench_.mover().move(sent.moves_in(call.input, width, packed(), width), way_in(travel));
    device::Steps exchanging =
        exchange({.from = packed(),
                  .from_stride = stride,
                  .bytes_to = [&](std::size_t rank) { return sent.piece(rank) * width; },
                  .to = received(),
                  .to_stride = stride,
                  .bytes_from = [&](std::size_t rank) { return come.piece(rank) * width; }});
    co_await exchanging;
    unpack_parts(call.output, come, travel);
  }
}

device::Steps DirectOperations::reducescatter(ReducescatterCall call) {
  const Travel travel = travel_for(travel_of(call.dtype, call.op, call.prescale, call.postscale,
                                             call.divisor(ranks_), std::nullopt));
  const std::size_t most = *std::max_element(call.counts.begin(), call.counts.end());
  const std::size_t each = elements_of_part(travel.width());
  const std::size_t stride = each * travel.width();
  for (std::size_t done = 0; done < most; done += each) {
    const RankParts parts{call.counts, done, each};
    const std::size_t own = parts.piece(own_);
    bench_.mover().move(parts.moves_in(call.input, size_of(travel.from), packed(), travel.width()),
                        way_in(travel));
    device::Steps exchanging =
        exchange({.from = packed(),
                  .from_stride = stride,
                  .bytes_to = [&](std::size_t rank) { return parts.piece(rank) * travel.width(); },
                  .to = received(),
                  .to_stride = stride,
                  .bytes_from = [&](std::size_t) { return own * travel.width(); }});
    co_await exchanging;
    if (call.output == nullptr || own == 0) continue;
    void* const output = at(call.output, done, size_of(travel.from));
    const bool converts = travel.from != travel.dtype;
    const DevicePointer target = converts ? packed() + own_ * stride : address_of(output);
    reduce(stride, target, own, travel);
    const SegmentMover::Move out{.source = pointer_to(target), .target = output, .count = own};
    if (converts) bench_.mover().move({&out, 1}, way_out(travel));
  }
}

}  // namespace ronde::cuda
