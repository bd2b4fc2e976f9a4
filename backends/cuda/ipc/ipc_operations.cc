// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/ipc/ipc_operations.h"

#include <algorithm>
#include <utility>

#include "ronde/error.h"

namespace ronde::cuda {
namespace {

constexpr std::size_t kHalves = 2;  ///< of the fusion buffer, which chunks use in turn
constexpr std::uint64_t kChunkBytes = std::uint64_t{64} << 20;  ///< where fusion is off
constexpr std::size_t kAlignment = 256;                         ///< bytes

constexpr std::size_t round_up(std::size_t value, std::size_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

IpcOperations::IpcOperations(GpuResources& resources, IpcPeers& peers, RegistrationCache& cache,
                             gpu::HostExchange& exchange, CudaCounters& counters,
                             const CudaOptions& options,
                             std::function<void(const std::string&)> warn)
    : Collectives(
          resources, counters.packed_bytes, peers.size(), peers.own(),
          (resources.fusion_bytes() - static_cast<std::size_t>(options.one_shot_bytes)) / kHalves),
      peers_(peers),
      cache_(cache),
      exchange_(exchange),
      counters_(counters),
      block_bytes_(options.ipc_block_bytes),
      keeps_(options.registration_cache),
      cache_limit_(options.registration_cache_bytes),
      warn_(std::move(warn)),
      direct_bytes_(options.ipc_direct_bytes),
      one_shot_bytes_(static_cast<std::size_t>(options.one_shot_bytes)) {}

std::size_t IpcOperations::buffer_bytes(const CudaOptions& options, std::size_t ranks) noexcept {
  const auto chunk =
      static_cast<std::size_t>(options.fusion_bytes > 0 ? options.fusion_bytes : kChunkBytes);
  return kHalves * round_up(std::max(chunk, ranks * kPartAlignment), kAlignment) +
         static_cast<std::size_t>(options.one_shot_bytes);
}

/// Work queued from now on runs after all work that the ranks have queued so far.
Steps IpcOperations::meet() {
  record();
  co_await exchange_.share(++meetings_);
  for (const std::uint64_t meeting : exchange_.all<std::uint64_t>()) {
    if (meeting == meetings_) continue;
    throw Error(
        "ranks came to different synchronisations between GPUs: the order of operations differs");
  }
  peers_.wait_for_all();
}

/// Without the cache, or beyond its limit, mappings are closed once this rank no longer reads them.
Steps IpcOperations::end_operation() {
  if (keeps_ && cache_.bytes() <= cache_limit_) co_return;
  co_await resources_.reach();
  keeps_ ? cache_.make_room() : cache_.clear();
  if (!keeps_) peers_.let();
}

/// A meeting is enough: the parts for this rank are read from the peers' buffers.
Steps IpcOperations::exchange(Pattern pattern, RankParts to, RankParts, std::size_t width) {
  co_await meet();
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    parts_[rank] = base(rank) + (pattern == Pattern::Scatter ? own_ : rank) * to.each * width;
  }
}

void IpcOperations::reduce_all(const gpu::ChunkLayout& layout, const WireFormat& wire) {
  ++counters_.one_shots;
  for (std::size_t rank = 0; rank < ranks_; ++rank) parts_[rank] = base(rank);
  const gpu::Piece& first = layout.pieces().front();
  const bool is_alone = layout.pieces().size() == 1 && wire.from == wire.dtype;
  void* const output = first.segment->output;
  const bool is_aligned = address_of(output) % wire.width() == 0;
  if (is_alone && output != nullptr && is_aligned) {
    return reduce(address_of(at(output, first.offset, wire.width())), layout.extent(), wire);
  }
  // Memory behind the halves, which no peer reads.
  const DevicePointer result = resources_.fusion() + kHalves * half_bytes_;
  reduce(result, layout.extent(), wire);
  resources_.move(moves_out(layout.pieces(), result, wire), way_out(wire));
}

Steps IpcOperations::allreduce(AllreduceCall call) {
  begin_operation();
  const WireFormat wire = wire_format_of(call.reduction(), call.wire_dtype);
  const std::size_t bytes =
      call.segments.size() == 1 ? call.segments[0].count * size_of(call.dtype) : 0;
  if (direct_bytes_ > 0 && bytes >= direct_bytes_ && wire.is_plain()) {
    bool was_done = false;
    co_await allreduce_directly(call.segments[0], wire, was_done);
    if (was_done) co_return;
  }
  gpu::ChunkLayout layout = layout_of(call, wire);
  while (layout.next()) {
    begin_chunk();
    pack(layout, wire);
    if (layout.extent() * wire.width() <= one_shot_bytes_) {
      co_await meet();
      reduce_all(layout, wire);
    } else {
      ++counters_.two_shots;
      co_await two_shot(layout, wire);
    }
  }
  co_await end_operation();
}

Steps IpcOperations::broadcast(BroadcastCall call) {
  begin_operation();
  const auto root = static_cast<std::size_t>(call.root);
  const bool is_root = root == own_;
  const WireFormat wire{.from = call.dtype, .dtype = call.dtype};
  gpu::ChunkLayout layout(call.segments, half_bytes_ / wire.width(), wire.alignment());
  while (layout.next()) {
    begin_chunk();
    if (is_root) pack(layout, wire);
    co_await meet();
    resources_.move(moves_out(layout.pieces(), base(root), wire, {}, is_root),
                    way_out(wire, traffic()));
  }
  co_await end_operation();
}

/// Exports the tensor; of 0 bytes if peers cannot map it.
ExportedMemory IpcOperations::offer_of(const Segment& segment, std::size_t bytes) const {
  if (segment.input == nullptr || segment.input != segment.output) return {};
  const std::size_t width = bytes / std::max<std::size_t>(segment.count, 1);
  if (address_of(segment.input) % width != 0) return {};
  try {
    const auto exported = export_memory(*resources_.context(), address_of(segment.input), bytes);
    if (!exported) return {};
    const bool is_whole = exported->base % block_bytes_ == 0 && exported->size % block_bytes_ == 0;
    return is_whole ? *exported : ExportedMemory{};
  } catch (const DriverError&) {
    return {};  // memory without a handle is packed
  }
}

/// Maps the peers' tensors if all ranks can, at `parts_`. If `was_done`, work queued from now on
/// runs once all ranks' tensors are ready to be read.
Steps IpcOperations::map_tensors(const Segment& segment, std::size_t bytes, bool& was_done) {
  co_await exchange_.share(offer_of(segment, bytes));
  const auto tensors = exchange_.all<ExportedMemory>();
  for (const ExportedMemory& tensor : tensors) {
    if (tensor.bytes == 0) co_return;
  }
  std::string problem = gpu::problem_of([&] {
    for (std::size_t rank = 0; rank < tensors.size(); ++rank) {
      parts_[rank] = rank == own_
                         ? tensors[rank].base + tensors[rank].offset
                         : cache_.map(resources_.context(), tensors[rank], peers_.names()[rank]);
    }
  });
  record();
  co_await gpu::agree(exchange_, peers_.names(), problem);
  peers_.wait_for_all();
  was_done = problem.empty();
  if (was_done) co_return;
  direct_bytes_ = 0;  // it would fail again
  warn_(
      "tensors cannot be mapped by other ranks, and are copied into the fusion buffer from now "
      "on: " +
      problem);
}

/// Reduces tensors in place, without the fusion buffer. It ends with a meeting, as the program may
/// write to its tensor afterwards, which peers must have read by then.
Steps IpcOperations::allreduce_directly(const Segment& segment, const WireFormat& wire,
                                        bool& was_done) {
  co_await map_tensors(segment, segment.count * wire.width(), was_done);
  if (!was_done) co_return;
  ++counters_.direct;
  const std::vector<DevicePointer> tensors = parts_;
  const std::vector<std::size_t> shares = shares_of(segment.count, wire);
  const std::size_t stride = shares.front() * wire.width();
  for (DevicePointer& part : parts_) part += own_ * stride;
  reduce(parts_[own_], shares[own_], wire);
  co_await meet();
  for (std::size_t turn = 0; turn + 1 < ranks_; ++turn) {
    const std::size_t rank = source(turn);
    if (shares[rank] == 0) continue;
    resources_.stream().copy(tensors[own_] + rank * stride, tensors[rank] + rank * stride,
                             shares[rank] * wire.width(), "reading the result");
  }
  co_await meet();
  co_await end_operation();
}

}  // namespace ronde::cuda
