// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/staging/staged_operations.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "backends/gpu/base/chunk_layout.h"

namespace ronde::cuda {
namespace {

constexpr std::size_t kSlots = 3;  ///< pieces at a time: one down, one on the host, one up
constexpr std::size_t kMostKept = std::size_t{32} << 20;  ///< bytes of page-locked memory

}  // namespace

StagedOperations::StagedOperations(GpuResources& resources, std::shared_ptr<Stream> up,
                                   const CudaOptions& options, Backend& host,
                                   CudaCounters& counters, int rank)
    : resources_(resources),
      up_(std::move(up)),
      piece_bytes_(static_cast<std::size_t>(options.staged_piece_bytes)),
      keeps_(options.registration_cache),
      host_(host),
      counters_(counters),
      rank_(rank) {}

Steps StagedOperations::pass(std::span<const Segment> segments, Passage passage) {
  const WireFormat& wire = passage.wire;
  const std::size_t width = wire.width();
  gpu::ChunkLayout layout(segments, resources_.fusion_bytes() / width, wire.alignment());
  while (layout.next()) {
    const DevicePointer chunk = resources_.fusion();
    if (passage.reads) resources_.move(moves_in(layout.pieces(), chunk, wire), way_in(wire));
    const Moves results = moves_out(layout.pieces(), chunk, wire, {}, passage.skips_in_place);
    co_await pass_chunk(passage, layout.extent() * width, !results.empty());
    resources_.move(results, way_out(wire));
    if (keeps_) continue;
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
  const std::size_t used = std::min(kSlots, count);
  while (slots_.size() < used) {
    slots_.emplace_back(resources_.context(), keeps_ ? each : std::min(each, chunk_bytes));
  }
  for (std::size_t i = 0; i < used; ++i) fetch(slots_[i], passage, i * each, chunk_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    Slot& slot = slots_[i % used];
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
    const std::size_t next = i + used;
    if (next < count) fetch(slot, passage, next * each, chunk_bytes);
  }
  if (!is_copied_up) co_return;
  const Event over(resources_.context());
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

/// Returns page-locked memory of that size, which nothing uses; null for none.
std::byte* StagedOperations::room_in(PinnedMemory& memory, std::size_t bytes) const {
  if (bytes == 0) return nullptr;
  if (memory.bytes() < bytes) {
    memory = {};
    // Larger ones of the next operations shall not all be pinned anew.
    memory = {resources_.context(), bytes < kMostKept ? std::bit_ceil(bytes) : bytes};
  }
  return memory.data();
}

template <typename Call>
Steps StagedOperations::pass_whole(Call call, std::size_t input_bytes, std::size_t output_bytes,
                                   std::unique_ptr<Operation> (Backend::*start)(const Call& call)) {
  Call on_host = call;
  on_host.place = {};
  if constexpr (requires { call.input; }) {
    on_host.input = room_in(whole_input_, call.input != nullptr ? input_bytes : 0);
    if (on_host.input != nullptr) {
      resources_.stream().copy(whole_input_.address(), address_of(call.input), input_bytes,
                               "copying from the GPU");
      co_await resources_.reach();
    }
  }
  if constexpr (requires { call.output; }) {
    on_host.output = room_in(whole_output_, call.output != nullptr ? output_bytes : 0);
  }
  const std::unique_ptr<Operation> operation = (host_.*start)(on_host);
  co_await until_finished(*operation);
  counters_.staged_bytes += input_bytes + output_bytes;
  if constexpr (requires { call.output; }) {
    if (on_host.output != nullptr) {
      resources_.stream().copy(address_of(call.output), whole_output_.address(), output_bytes,
                               "copying to the GPU");
      co_await resources_.reach();
    }
  }
  for (PinnedMemory* const memory : {&whole_input_, &whole_output_}) {
    if (!keeps_ || memory->bytes() > kMostKept) *memory = {};
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
