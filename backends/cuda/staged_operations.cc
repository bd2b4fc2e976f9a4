// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/staged_operations.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "backends/cuda/addresses.h"

namespace ronde::cuda {
namespace {

std::size_t sum(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

device::Steps finish(std::unique_ptr<Operation> operation) {
  co_await device::until_finished(*operation);
}

}  // namespace

StagedOperations::StagedOperations(Workbench& bench, HostPipe& pipe, Backend& host,
                                   CudaCounters& counters, int rank)
    : bench_(bench), pipe_(pipe), host_(host), counters_(counters), rank_(rank) {}

void StagedOperations::pack(const device::ChunkLayout& layout, const Passage& passage) {
  if (!passage.reads) return;
  const std::size_t width = size_of(passage.dtype);
  moves_.clear();
  for (const device::Piece& piece : layout.pieces()) {
    const void* const input = piece.segment->input;
    if (input == nullptr) continue;  // the host is told so
    moves_.push_back({.source = at(input, piece.offset, size_of(passage.from)),
                      .target = writable(bench_.fusion() + piece.position * width),
                      .count = piece.count});
  }
  bench_.mover().move(
      moves_, {.from = passage.from, .to = passage.dtype, .scaling = {passage.pack_scale, 1.0}});
}

bool StagedOperations::plan_unpacking(const device::ChunkLayout& layout, const Passage& passage) {
  const std::size_t width = size_of(passage.dtype);
  moves_.clear();
  for (const device::Piece& piece : layout.pieces()) {
    void* const output = piece.segment->output;
    const bool is_there = output == piece.segment->input && !passage.writes_in_place;
    if (output == nullptr || is_there) continue;
    moves_.push_back({.source = pointer_to(bench_.fusion() + piece.position * width),
                      .target = at(output, piece.offset, size_of(passage.from)),
                      .count = piece.count});
  }
  return !moves_.empty();
}

/// What of the segments lies in a piece of the window, as the host sees it.
std::span<const Segment> StagedOperations::host_pieces(const device::ChunkLayout& layout,
                                                       const HostPipe::Piece& piece,
                                                       std::size_t width) {
  pieces_.clear();
  for (const device::Piece& part : layout.pieces()) {
    const std::size_t from = std::max(part.position * width, piece.begin);
    const std::size_t to =
        std::min((part.position + part.count) * width, piece.begin + piece.bytes);
    if (from >= to) continue;
    std::byte* const memory = piece.memory + (from - piece.begin);
    const bool has_input = part.segment->input != nullptr;
    pieces_.push_back({has_input ? memory : nullptr, memory, (to - from) / width});
  }
  return pieces_;
}

device::Steps StagedOperations::pass_window(const device::ChunkLayout& layout,
                                            const Passage& passage) {
  const std::size_t width = size_of(passage.dtype);
  pack(layout, passage);
  const bool returns = plan_unpacking(layout, passage);
  HostPipe::Passage through{.memory = bench_.fusion(),
                            .bytes = layout.extent() * width,
                            .longest = layout.extent() * width,
                            .is_copied_down = passage.reads,
                            .is_copied_up = returns};
  through.work = [&](const HostPipe::Piece& piece) {
    return finish(passage.launch(host_pieces(layout, piece, width)));
  };
  device::Steps passing = pipe_.pass(std::move(through));
  co_await passing;
  if (returns) bench_.mover().move(moves_, {.from = passage.dtype, .to = passage.from});
  device::Steps settling = pipe_.settle();
  co_await settling;
}

device::Steps StagedOperations::pass(std::span<const Segment> segments, Passage passage) {
  const std::size_t width = size_of(passage.dtype);
  device::ChunkLayout layout(segments, bench_.fusion_bytes() / width, 16 / width);
  while (layout.next()) {
    device::Steps window = pass_window(layout, passage);
    co_await window;
  }
}

device::Steps StagedOperations::allreduce(AllreduceCall call, std::size_t ranks) {
  Passage passage{.from = call.dtype, .dtype = call.travelling_dtype()};
  if (call.wire_dtype) passage.pack_scale = call.prescale;
  passage.launch = [this, call, ranks](std::span<const Segment> pieces) {
    return host_.allreduce({.segments = pieces,
                            .dtype = call.travelling_dtype(),
                            .op = call.op,
                            .prescale = call.wire_dtype ? 1.0 : call.prescale,
                            .postscale = call.postscale,
                            .average_over = call.divisor(ranks)});
  };
  return pass(call.segments, std::move(passage));
}

device::Steps StagedOperations::broadcast(BroadcastCall call) {
  Passage passage{.from = call.dtype, .dtype = call.dtype};
  passage.reads = call.root == rank_;
  passage.writes_in_place = call.root != rank_;
  passage.launch = [&](std::span<const Segment> pieces) {
    return host_.broadcast({.segments = pieces, .dtype = call.dtype, .root = call.root});
  };
  // The memory of the others' inputs says nothing.
  std::vector<Segment> segments(call.segments.begin(), call.segments.end());
  if (!passage.reads) {
    for (Segment& segment : segments) segment.input = nullptr;
  }
  device::Steps steps = pass(segments, passage);
  co_await steps;
}

device::Steps StagedOperations::pass_whole(Whole whole) {
  for (const auto& event : whole.after) event->order(pipe_.up().handle());
  const Event moved = bench_.events().take();
  if (whole.input != nullptr && whole.input_bytes > 0) {
    whole_input_ = pipe_.pinned().take(whole.input_bytes);
    bench_.stream().copy(whole_input_.address(), address_of(whole.input), whole.input_bytes,
                         "copying from the GPU");
    bench_.stream().record(moved);
    co_await device::until([&moved] { return moved.is_done(); });
  }
  if (whole.output != nullptr && whole.output_bytes > 0) {
    whole_output_ = pipe_.pinned().take(whole.output_bytes);
  }
  const std::unique_ptr<Operation> operation =
      whole.launch(whole_input_.data(), whole_output_.data());
  co_await device::until_finished(*operation);
  counters_.staged_bytes.fetch_add(whole.input_bytes + whole.output_bytes,
                                   std::memory_order_relaxed);
  whole_input_ = {};
  if (whole_output_.data() == nullptr) co_return;
  pipe_.up().copy(address_of(whole.output), whole_output_.address(), whole.output_bytes,
                  "copying to the GPU");
  pipe_.up().record(moved);
  bench_.stream().wait_for(moved);
  co_await device::until([&moved] { return moved.is_done(); });
  whole_output_ = {};
}

device::Steps StagedOperations::allgather(AllgatherCall call) {
  const std::size_t width = size_of(call.dtype);
  const std::size_t own = call.counts[static_cast<std::size_t>(rank_)];
  Whole whole{.input = call.input,
              .input_bytes = own * width,
              .output = call.output,
              .output_bytes = sum(call.counts) * width,
              .after = call.place.after};
  whole.launch = [this, call](const void* input, void* output) {
    return host_.allgather(
        {.input = input, .output = output, .counts = call.counts, .dtype = call.dtype});
  };
  return pass_whole(std::move(whole));
}

device::Steps StagedOperations::alltoall(AlltoallCall call) {
  const std::size_t width = size_of(call.dtype);
  Whole whole{.input = call.input,
              .input_bytes = sum(call.send_counts) * width,
              .output = call.output,
              .output_bytes = sum(call.receive_counts) * width,
              .after = call.place.after};
  whole.launch = [this, call](const void* input, void* output) {
    return host_.alltoall({.input = input,
                           .output = output,
                           .send_counts = call.send_counts,
                           .receive_counts = call.receive_counts,
                           .largest_count = call.largest_count,
                           .dtype = call.dtype});
  };
  return pass_whole(std::move(whole));
}

device::Steps StagedOperations::reducescatter(ReducescatterCall call) {
  const std::size_t width = size_of(call.dtype);
  Whole whole{.input = call.input,
              .input_bytes = sum(call.counts) * width,
              .output = call.output,
              .output_bytes = call.counts[static_cast<std::size_t>(rank_)] * width,
              .after = call.place.after};
  whole.launch = [this, call](const void* input, void* output) {
    return host_.reducescatter({.input = input,
                                .output = output,
                                .counts = call.counts,
                                .dtype = call.dtype,
                                .op = call.op,
                                .prescale = call.prescale,
                                .postscale = call.postscale,
                                .average_over = call.average_over});
  };
  return pass_whole(std::move(whole));
}

device::Steps StagedOperations::send(SendCall call) {
  Whole whole{.input = call.input,
              .input_bytes = call.count * size_of(call.dtype),
              .after = call.place.after};
  whole.launch = [this, call](const void* input, void*) {
    return host_.send(
        {.input = input, .count = call.count, .dtype = call.dtype, .peer = call.peer});
  };
  return pass_whole(std::move(whole));
}

device::Steps StagedOperations::recv(RecvCall call) {
  Whole whole{.output = call.output,
              .output_bytes = call.count * size_of(call.dtype),
              .after = call.place.after};
  whole.launch = [this, call](const void*, void* output) {
    return host_.recv(
        {.output = output, .count = call.count, .dtype = call.dtype, .peer = call.peer});
  };
  return pass_whole(std::move(whole));
}

}  // namespace ronde::cuda
