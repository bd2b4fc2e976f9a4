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
    const auto piece = [&](std::size_t rank) {
      return call.counts[rank] > done ? std::min(call.counts[rank] - done, each) : 0;
    };
    begin_chunk();
    moves_.assign(1, {.source = at(call.input, done, width),
                      .target = writable(base(peers_.own())),
                      .count = piece(peers_.own())});
    bench_.mover().move(moves_, {.from = call.dtype, .to = call.dtype});
    hand_over(Mark::Packed);
    co_await device::until([this] { return has_come(); });
    peers_.wait_for_all(Mark::Packed, half_);
    moves_.clear();
    std::size_t before = 0;
    for (std::size_t rank = 0; rank < peers_.size() && call.output != nullptr; ++rank) {
      moves_.push_back({.source = pointer_to(base(rank)),
                        .target = at(call.output, before + done, width),
                        .count = piece(rank)});
      before += call.counts[rank];
    }
    bench_.mover().move(moves_, {.from = call.dtype, .to = call.dtype});
    end_chunk();
  }
  device::Steps end = end_operation();
  co_await end;
}

device::Steps IpcOperations::alltoall(AlltoallCall call) {
  peers_.hold();
  const std::size_t width = size_of(call.dtype);
  const std::size_t ranks = peers_.size();
  // As far apart on every rank, whatever each sends.
  const std::size_t each = elements_of_part(width);
  const auto piece = [&](std::size_t count, std::size_t done) {
    return count > done ? std::min(count - done, each) : 0;
  };
  for (std::size_t done = 0; done < call.largest_count; done += each) {
    begin_chunk();
    moves_.clear();
    std::size_t before = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::size_t count = piece(call.send_counts[rank], done);
      if (count > 0) {
        moves_.push_back({.source = at(call.input, before + done, width),
                          .target = writable(base(peers_.own()) + rank * each * width),
                          .count = count});
      }
      before += call.send_counts[rank];
    }
    bench_.mover().move(moves_, {.from = call.dtype, .to = call.dtype});
    hand_over(Mark::Packed);
    co_await device::until([this] { return has_come(); });
    peers_.wait_for_all(Mark::Packed, half_);
    moves_.clear();
    before = 0;
    for (std::size_t rank = 0; rank < ranks && call.output != nullptr; ++rank) {
      moves_.push_back({.source = pointer_to(base(rank) + peers_.own() * each * width),
                        .target = at(call.output, before + done, width),
                        .count = piece(call.receive_counts[rank], done)});
      before += call.receive_counts[rank];
    }
    bench_.mover().move(moves_, {.from = call.dtype, .to = call.dtype});
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
    const auto piece = [&](std::size_t rank) {
      return call.counts[rank] > done ? std::min(call.counts[rank] - done, each) : 0;
    };
    begin_chunk();
    moves_.clear();
    std::size_t before = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const void* const input = call.input;
      moves_.push_back(
          {.source = input != nullptr ? at(input, before + done, size_of(travel.from)) : nullptr,
           .target = writable(base(peers_.own()) + rank * each * travel.width()),
           .count = piece(rank)});
      before += call.counts[rank];
    }
    bench_.mover().move(moves_, {.from = travel.from,
                                 .to = travel.dtype,
                                 .scaling = {travel.pack_scale, 1.0},
                                 .op = travel.op});
    hand_over(Mark::Packed);
    co_await device::until([this] { return has_come(); });
    peers_.wait_for_all(Mark::Packed, half_);
    if (call.output != nullptr && piece(peers_.own()) > 0) {
      reduce_part(peers_.own() * each * travel.width(), piece(peers_.own()), travel,
                  at(call.output, done, size_of(travel.from)));
    }
    end_chunk();
  }
  device::Steps end = end_operation();
  co_await end;
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
