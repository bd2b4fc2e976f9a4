// SPDX-License-Identifier: Apache-2.0
// The collectives in which ranks bring different parts.
#include <algorithm>

#include "backends/cuda/addresses.h"
#include "backends/cuda/ipc_operations.h"

namespace ronde::cuda {

device::Steps IpcOperations::broadcast(BroadcastCall call) {
  peers_.hold();
  const auto root = static_cast<std::size_t>(call.root);
  const bool is_root = root == peers_.own();
  const Travel travel{.from = call.dtype, .dtype = call.dtype};
  device::ChunkLayout layout(call.segments, elements_of_half(travel.width()), travel.alignment());
  while (layout.next()) {
    begin_chunk();
    if (is_root) pack(layout, travel);
    hand_over(Mark::Packed);
    co_await device::until([this] { return has_come(); });
    peers_.wait_for_all(Mark::Packed, half_);
    moves_.clear();
    for (const device::Piece& piece : layout.pieces()) {
      void* const output = piece.segment->output;
      if (output == nullptr || (is_root && output == piece.segment->input)) continue;
      moves_.push_back({.source = pointer_to(base(root) + piece.position * travel.width()),
                        .target = at(output, piece.offset, travel.width()),
                        .count = piece.count});
    }
    bench_.mover().move(moves_, {.from = call.dtype, .to = call.dtype});
    end_chunk();
  }
  device::Steps end = end_operation();
  co_await end;
}

device::Steps IpcOperations::allgather(AllgatherCall call) {
  peers_.hold();
  const std::size_t width = size_of(call.dtype);
  const std::size_t most = *std::max_element(call.counts.begin(), call.counts.end());
  const std::size_t each = elements_of_half(width);
  for (std::size_t done = 0; done < most; done += each) {
    const RankParts parts{call.counts, done, each};
    begin_chunk();
    moves_.assign(1, {.source = at(call.input, done, width),
                      .target = writable(base(peers_.own())),
                      .count = parts.piece(peers_.own())});
    bench_.mover().move(moves_, {.from = call.dtype, .to = call.dtype});
    hand_over(Mark::Packed);
    co_await device::until([this] { return has_come(); });
    peers_.wait_for_all(Mark::Packed, half_);
    unpack_parts(call.output, parts, 0, call.dtype);
    end_chunk();
  }
  device::Steps end = end_operation();
  co_await end;
}

device::Steps IpcOperations::alltoall(AlltoallCall call) {
  peers_.hold();
  const std::size_t width = size_of(call.dtype);
  // As far apart on every rank, whatever each sends.
  const std::size_t each = elements_of_part(width);
  for (std::size_t done = 0; done < call.largest_count; done += each) {
    begin_chunk();
    const RankParts sent{call.send_counts, done, each};
    moves_ = sent.moves_in(call.input, width, base(peers_.own()), width);
    bench_.mover().move(moves_, {.from = call.dtype, .to = call.dtype});
    hand_over(Mark::Packed);
    co_await device::until([this] { return has_come(); });
    peers_.wait_for_all(Mark::Packed, half_);
    unpack_parts(call.output, {call.receive_counts, done, each}, peers_.own() * each * width,
                 call.dtype);
    end_chunk();
  }
  device::Steps end = end_operation();
  co_await end;
}

device::Steps IpcOperations::reducescatter(ReducescatterCall call) {
  peers_.hold();
  const std::size_t ranks = peers_.size();
  const Travel travel = travel_of(call.dtype, call.op, call.prescale, call.postscale,
                                  call.divisor(ranks), std::nullopt);
  const std::size_t most = *std::max_element(call.counts.begin(), call.counts.end());
  const std::size_t each = elements_of_part(travel.width());
  for (std::size_t done = 0; done < most; done += each) {
    const RankParts parts{call.counts, done, each};
    const std::size_t own = parts.piece(peers_.own());
    begin_chunk();
    moves_ = parts.moves_in(call.input, size_of(travel.from), base(peers_.own()), travel.width());
    bench_.mover().move(moves_, {.from = travel.from,
                                 .to = travel.dtype,
                                 .scaling = {travel.pack_scale, 1.0},
                                 .op = travel.op});
    hand_over(Mark::Packed);
    co_await device::until([this] { return has_come(); });
    peers_.wait_for_all(Mark::Packed, half_);
    if (call.output != nullptr && own > 0) {
      reduce_part(peers_.own() * each * travel.width(), own, travel,
                  at(call.output, done, size_of(travel.from)));
    }
    end_chunk();
  }
  device::Steps end = end_operation();
  co_await end;
}

/// Each rank's part to its place in the output, from `offset` bytes behind where that rank's half
/// begins.
void IpcOperations::unpack_parts(void* output, const RankParts& parts, std::size_t offset,
                                 DataType dtype) {
  if (output == nullptr) return;
  moves_.clear();
  parts.for_each([&](std::size_t rank, std::size_t element) {
    moves_.push_back({.source = pointer_to(base(rank) + offset),
                      .target = at(output, element, size_of(dtype)),
                      .count = parts.piece(rank)});
  });
  bench_.mover().move(moves_, {.from = dtype, .to = dtype});
}

/// What lies `offset` bytes behind the beginning of each rank's half; of the own one nobody else
/// reads it.
void IpcOperations::reduce_part(std::size_t offset, std::size_t count, const Travel& travel,
                                void* output) {
  const bool converts = travel.from != travel.dtype;
  const DevicePointer target = converts ? base(peers_.own()) + offset : address_of(output);
  bench_.kernels().reduce(bench_.stream(), target, inputs(offset), count, travel.reduction());
  if (!converts) return;
  moves_.assign(1, {.source = pointer_to(target), .target = output, .count = count});
  bench_.mover().move(moves_, {.from = travel.dtype, .to = travel.from});
}

}  // namespace ronde::cuda
