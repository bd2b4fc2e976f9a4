// SPDX-License-Identifier: Apache-2.0
// The collectives in which ranks bring different parts.
#include <algorithm>

#include "backends/cuda/addresses.h"
#include "backends/cuda/ipc_operations.h"

namespace ronde::cuda {

device::Steps IpcOperations::broadcast(BroadcastCall call) {
  begin_operation();
  const auto root = static_cast<std::size_t>(call.root);
  const bool is_root = root == peers_.own();
  const Travel travel{.from = call.dtype, .dtype = call.dtype};
  device::ChunkLayout layout(call.segments, elements_of_half(travel.width()), travel.alignment());
  while (layout.next()) {
    begin_chunk();
    if (is_root) pack(layout, travel);
    co_await meet();
    bench_.mover().move(
        moves_out(layout.pieces(), base(root), size_of(travel.from), travel.width(), {}, is_root),
        way_out(travel, peers_.traffic()));
  }
  co_await end_operation();
}

device::Steps IpcOperations::allgather(AllgatherCall call) {
  begin_operation();
  const Travel travel{.from = call.dtype, .dtype = call.dtype};
  const std::size_t most = *std::max_element(call.counts.begin(), call.counts.end());
  const std::size_t each = elements_of_half(travel.width());
  for (std::size_t done = 0; done < most; done += each) {
    const RankParts parts{call.counts, done, each};
    begin_chunk();
    const SegmentMover::Move own{.source = at(call.input, done, travel.width()),
                                 .target = writable(base(peers_.own())),
                                 .count = parts.piece(peers_.own())};
    bench_.mover().move({&own, 1}, way_in(travel));
    co_await meet();
    unpack_parts(call.output, parts, 0, travel);
  }
  co_await end_operation();
}

device::Steps IpcOperations::alltoall(AlltoallCall call) {
  begin_operation();
  const Travel travel{.from = call.dtype, .dtype = call.dtype};
  // As far apart on every rank, whatever each sends.
  const std::size_t each = elements_of_part(travel.width());
  for (std::size_t done = 0; done < call.largest_count; done += each) {
    const RankParts sent{call.send_counts, done, each};
    begin_chunk();
    bench_.mover().move(
        sent.moves_in(call.input, travel.width(), base(peers_.own()), travel.width()),
        way_in(travel));
    co_await meet();
    unpack_parts(call.output, {call.receive_counts, done, each},
                 peers_.own() * each * travel.width(), travel);
  }
  co_await end_operation();
}

device::Steps IpcOperations::reducescatter(ReducescatterCall call) {
  begin_operation();
  const Travel travel = travel_of(call.dtype, call.op, call.prescale, call.postscale,
                                  call.divisor(peers_.size()), std::nullopt);
  const std::size_t most = *std::max_element(call.counts.begin(), call.counts.end());
  const std::size_t each = elements_of_part(travel.width());
  for (std::size_t done = 0; done < most; done += each) {
    const RankParts parts{call.counts, done, each};
    const std::size_t own = parts.piece(peers_.own());
    begin_chunk();
    bench_.mover().move(
        parts.moves_in(call.input, size_of(travel.from), base(peers_.own()), travel.width()),
        way_in(travel));
    co_await meet();
    if (call.output != nullptr && own > 0) {
      void* const output = at(call.output, done, size_of(travel.from));
      const std::size_t offset = peers_.own() * each * travel.width();
      const bool converts = travel.from != travel.dtype;
      // Nobody else reads that part of this rank's buffer.
      const DevicePointer target = converts ? base(peers_.own()) + offset : address_of(output);
      reduce(target, offset, own, travel);
      const SegmentMover::Move out{.source = pointer_to(target), .target = output, .count = own};
      if (converts) bench_.mover().move({&out, 1}, way_out(travel));
    }
  }
  co_await end_operation();
}

/// Each rank's part to its place in the output, from `offset` bytes behind where that rank's half
/// begins.
void IpcOperations::unpack_parts(void* output, const RankParts& parts, std::size_t offset,
                                 const Travel& travel) {
  const auto source_of = [&](std::size_t rank) { return base(rank) + offset; };
  bench_.mover().move(parts.moves_out(source_of, output, travel.width(), source(0)),
                      way_out(travel, peers_.traffic()));
}

}  // namespace ronde::cuda
