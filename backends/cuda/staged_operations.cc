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

template <typename Call>
device::Steps StagedOperations::pass_whole(
    Call call, std::size_t input_bytes, std::size_t output_bytes,
    std::unique_ptr<Operation> (Backend::*start)(const Call& call)) {
  const Event moved = bench_.events().take();
  Call on_host = call;
  on_host.place = {};
  if constexpr (requires { call.input; }) {
    if (call.input != nullptr && input_bytes > 0) {
      whole_input_ = bench_.pinned().take(input_bytes);
      bench_.stream().copy(whole_input_.address(), address_of(call.input), input_bytes,
                           "copying from the GPU");
      bench_.stream().record(moved);
      co_await device::until([&moved] { return moved.is_done(); });
    }
    on_host.input = whole_input_.data();
  }
  if constexpr (requires { call.output; }) {
    if (call.output != nullptr && output_bytes > 0) {
      whole_output_ = bench_.pinned().take(output_bytes);
    }
    on_host.output = whole_output_.data();
  }
  const std::unique_ptr<Operation> operation = (host_.*start)(on_host);
  co_await device::until_finished(*operation);
  counters_.staged_bytes.fetch_add(input_bytes + output_bytes, std::memory_order_relaxed);
  whole_input_ = {};
  if constexpr (requires { call.output; }) {
    if (whole_output_.data() == nullptr) co_return;
    bench_.stream().copy(address_of(call.output), whole_output_.address(), output_bytes,
                         "copying to the GPU");
    bench_.stream().record(moved);
    co_await device::until([&moved] { return moved.is_done(); });
    whole_output_ = {};
  }
}

device::Steps StagedOperations::allgather(AllgatherCall call) {
  const std::size_t width = size_of(call.dtype);
  return pass_whole(call, call.counts[static_cast<std::size_t>(rank_)] * width,
                    sum(call.counts) * width, &Backend::allgather);
}

device::Steps StagedOperations::alltoall(AlltoallCall call) {
  const std::size_t width = size_of(call.dtype);
  return pass_whole(call, sum(call.send_counts) * width, sum(call.receive_counts) * width,
                    &Backend::alltoall);
}

device::Steps StagedOperations::reducescatter(ReducescatterCall call) {
  const std::size_t width = size_of(call.dtype);
  return pass_whole(call, sum(call.counts) * width,
                    call.counts[static_cast<std::size_t>(rank_)] * width, &Backend::reducescatter);
}

device::Steps StagedOperations::send(SendCall call) {
  return pass_whole(call, call.count * size_of(call.dtype), 0, &Backend::send);
}

device::Steps StagedOperations::recv(RecvCall call) {
  return pass_whole(call, 0, call.count * size_of(call.dtype), &Backend::recv);
}

}  // namespace ronde::cuda
