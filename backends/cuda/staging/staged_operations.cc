// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/staging/staged_operations.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ronde::cuda {
namespace {

constexpr std::size_t kSlots = 3;  ///< pieces at a time: one down, one on the host, one up

std::size_t sum(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

}  // namespace

StagedOperations::StagedOperations(GpuResources& resources, std::shared_ptr<Stream> up,
                                   std::size_t piece_bytes, Backend& host, CudaCounters& counters,
                                   int rank)
    : resources_(resources),
      up_(std::move(up)),
      piece_bytes_(piece_bytes),
      host_(host),
      counters_(counters),
      rank_(rank) {}

Steps StagedOperations::pass(std::span<const Segment> segments, Passage passage) {
  const WireFormat& wire = passage.wire;
  const std::size_t width = wire.width();
  const std::size_t tensor_width = size_of(wire.from);
  gpu::ChunkLayout layout(segments, resources_.fusion_bytes() / width, wire.alignment());
  while (layout.next()) {
    const DevicePointer chunk = resources_.fusion();
    if (passage.reads) {
      resources_.move(moves_in(layout.pieces(), chunk, tensor_width, width), way_in(wire));
    }
    const Moves results =
        moves_out(layout.pieces(), chunk, tensor_width, width, {}, passage.skips_in_place);
    Steps passing = pass_chunk(passage, layout.extent() * width, !results.empty());
    co_await passing;
    resources_.move(results, way_out(wire));
    for (const Slot& slot : slots_) {
      if (slot.is_going_up) co_await until([&slot] { return slot.up.is_done(); });
    }
    slots_.clear();
  }
}

/// Passes the packed chunk through the host, in place. Work queued on the resources' stream
/// afterwards runs behind it.
Steps StagedOperations::pass_chunk(const Passage& passage, std::size_t chunk_bytes,
                                   bool is_copied_up) {
  const DevicePointer chunk = resources_.fusion();
  const std::size_t each = piece_bytes_;
  const std::size_t count = (chunk_bytes + each - 1) / each;
  for (std::size_t i = 0; i < std::min(kSlots, count); ++i) {
    slots_.push_back({resources_.pinned().take(std::min(each, chunk_bytes)),
                      resources_.events().take(), resources_.events().take()});
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) fetch(slots_[i], passage, i * each, chunk_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    Slot& slot = slots_[i % slots_.size()];
    const std::size_t bytes = std::min(each, chunk_bytes - i * each);
    co_await until([&slot] { return slot.down.is_done(); });
    const Segment piece{slot.memory.data(), slot.memory.data(), bytes / passage.wire.width()};
    const std::unique_ptr<Operation> operation = passage.launch({&piece, 1});
    co_await until_finished(*operation);
    if (is_copied_up) {
      up_->copy(chunk + i * each, slot.memory.address(), bytes, "copying to the GPU");
      up_->record(slot.up);
      slot.is_going_up = true;
      counters_.staged_bytes += bytes;
    }
    const std::size_t next = i + slots_.size();
    if (next < count) fetch(slot, passage, next * each, chunk_bytes);
  }
  if (!is_copied_up) co_return;
  const Event over = resources_.events().take();
  up_->record(over);
  resources_.stream().wait_for(over);
}

/// Queues the copy of a piece from the GPU, and the event that the host waits for: by then the
/// memory may also be written.
void StagedOperations::fetch(Slot& slot, const Passage& passage, std::size_t begin,
                             std::size_t chunk_bytes) {
  if (slot.is_going_up) resources_.stream().wait_for(slot.up);
  if (passage.reads) {
    resources_.stream().copy(slot.memory.address(), resources_.fusion() + begin,
                             std::min(piece_bytes_, chunk_bytes - begin), "copying from the GPU");
  }
  resources_.stream().record(slot.down);
}

Steps StagedOperations::allreduce(AllreduceCall call) {
  const WireFormat wire = wire_format_of(call.reduction(), call.wire_dtype);
  Passage passage{.wire = wire};
  passage.launch = [this, call, wire](std::span<const Segment> piece) {
    return host_.allreduce({.segments = piece,
                            .dtype = wire.dtype,
                            .op = call.op,
                            .prescale = wire.reduce_scale,
                            .final = call.final});
  };
  return pass(call.segments, std::move(passage));
}

Steps StagedOperations::broadcast(BroadcastCall call) {
  const bool is_root = call.root == rank_;
  Passage passage{.wire = {.from = call.dtype, .dtype = call.dtype},
                  .reads = is_root,
                  .skips_in_place = is_root};
  passage.launch = [this, call](std::span<const Segment> piece) {
    return host_.broadcast({.segments = piece, .dtype = call.dtype, .root = call.root});
  };
  return pass(call.segments, std::move(passage));
}

template <typename Call>
Steps StagedOperations::pass_whole(Call call, std::size_t input_bytes, std::size_t output_bytes,
                                   std::unique_ptr<Operation> (Backend::*start)(const Call& call)) {
  Call on_host = call;
  on_host.place = {};
  if constexpr (requires { call.input; }) {
    if (call.input != nullptr && input_bytes > 0) {
      whole_input_ = resources_.pinned().take(input_bytes);
      resources_.stream().copy(whole_input_.address(), address_of(call.input), input_bytes,
                               "copying from the GPU");
      co_await resources_.reach();
    }
    on_host.input = whole_input_.data();
  }
  if constexpr (requires { call.output; }) {
    if (call.output != nullptr && output_bytes > 0) {
      whole_output_ = resources_.pinned().take(output_bytes);
    }
    on_host.output = whole_output_.data();
  }
  const std::unique_ptr<Operation> operation = (host_.*start)(on_host);
  co_await until_finished(*operation);
  counters_.staged_bytes += input_bytes + output_bytes;
  whole_input_ = {};
  if constexpr (requires { call.output; }) {
    if (whole_output_.data() == nullptr) co_return;
    resources_.stream().copy(address_of(call.output), whole_output_.address(), output_bytes,
                             "copying to the GPU");
    co_await resources_.reach();
    whole_output_ = {};
  }
}

Steps StagedOperations::allgather(AllgatherCall call) {
  const std::size_t width = size_of(call.dtype);
  return pass_whole(call, call.counts[static_cast<std::size_t>(rank_)] * width,
                    sum(call.counts) * width, &Backend::allgather);
}

Steps StagedOperations::alltoall(AlltoallCall call) {
  const std::size_t width = size_of(call.dtype);
  return pass_whole(call, sum(call.send_counts) * width, sum(call.receive_counts) * width,
                    &Backend::alltoall);
}

Steps StagedOperations::reducescatter(ReducescatterCall call) {
  const std::size_t width = size_of(call.dtype);
  return pass_whole(call, sum(call.counts) * width,
                    call.counts[static_cast<std::size_t>(rank_)] * width, &Backend::reducescatter);
}

Steps StagedOperations::send(SendCall call) {
  return pass_whole(call, call.count * size_of(call.dtype), 0, &Backend::send);
}

Steps StagedOperations::recv(RecvCall call) {
  return pass_whole(call, 0, call.count * size_of(call.dtype), &Backend::recv);
}

}  // namespace ronde::cuda
