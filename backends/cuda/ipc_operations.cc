// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/ipc_operations.h"

#include <algorithm>
#include <string>
#include <utility>

#include "backends/cuda/addresses.h"
#include "backends/cuda/verdict.h"
#include "ronde/error.h"

namespace ronde::cuda {
namespace {

/// Of a chunk where fusion is off.
constexpr std::uint64_t kChunkBytes = std::uint64_t{64} << 20;
constexpr std::size_t kAlignment = 256;  // bytes
/// Room for an element of each rank.
constexpr std::size_t kLeastChunk = 4096;

constexpr std::size_t round_up(std::size_t value, std::size_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

/// The elements that a rank reduces for all.
struct Share {
  std::size_t begin = 0;
  std::size_t end = 0;
};
Share share_of(std::size_t rank, std::size_t ranks, std::size_t extent, std::size_t alignment) {
  const std::size_t each = round_up((extent + ranks - 1) / ranks, alignment);
  return {std::min(rank * each, extent), std::min((rank + 1) * each, extent)};
}

}  // namespace

IpcOperations::IpcOperations(Workbench& bench, IpcPeers& peers, RegistrationCache& cache,
                             device::HostExchange& exchange, BetweenHosts* between,
                             CudaCounters& counters, const CudaOptions& options,
                             std::function<void(const std::string&)> warn)
    : bench_(bench),
      peers_(peers),
      cache_(cache),
      exchange_(exchange),
      between_(between),
      counters_(counters),
      block_bytes_(options.ipc_block_bytes),
      keeps_(options.registration_cache),
      warn_(std::move(warn)),
      direct_bytes_(options.ipc_direct_bytes),
      one_shot_bytes_(static_cast<std::size_t>(options.one_shot_bytes)),
      half_bytes_((bench.fusion_bytes() - one_shot_bytes_) / kHalves) {}

std::size_t IpcOperations::buffer_bytes(const CudaOptions& options) noexcept {
  const auto chunk =
      static_cast<std::size_t>(options.fusion_bytes > 0 ? options.fusion_bytes : kChunkBytes);
  return kHalves * round_up(std::max(chunk, kLeastChunk), kAlignment) +
         static_cast<std::size_t>(options.one_shot_bytes);
}

DevicePointer IpcOperations::base(std::size_t rank) const {
  return peers_.fusion(rank) + half_ * half_bytes_;
}

/// Memory that no other rank looks at.
DevicePointer IpcOperations::scratch() const {
  return peers_.fusion(peers_.own()) + kHalves * half_bytes_;
}

std::size_t IpcOperations::elements_of_part(std::size_t width) const noexcept {
  const std::size_t bytes = half_bytes_ / peers_.size();
  return bytes >= kAlignment ? bytes / kAlignment * kAlignment / width
                             : std::max<std::size_t>(bytes / width, 1);
}

/// Note [Halves].
void IpcOperations::begin_chunk() {
  half_ = (half_ + 1) % kHalves;
  peers_.wait_for_all(Mark::Read, half_);
}

/// To be followed by waiting until has_come().
void IpcOperations::hand_over(Mark mark, bool refuses) {
  peers_.record(mark, half_);
  counters_.handovers.fetch_add(1, std::memory_order_relaxed);
  if (peers_.handover() == IpcHandover::Flags) {
    counters_.flag_handovers.fetch_add(1, std::memory_order_relaxed);
  } else if (peers_.handover() == IpcHandover::Kernels) {
    counters_.kernel_handovers.fetch_add(1, std::memory_order_relaxed);
  }
  exchange_.start(Handover{++handover_, refuses ? 1U : 0U});
}

bool IpcOperations::has_come() {
  if (!exchange_.poll()) return false;
  for (std::size_t rank = 0; rank < exchange_.size(); ++rank) {
    if (exchange_.of<Handover>(rank).number == handover_) continue;
    throw Error("ranks came to different handovers between GPUs: the order of operations differs");
  }
  return true;
}

void IpcOperations::end_chunk() {
  peers_.record(Mark::Read, half_);
}

void IpcOperations::forget() noexcept {
  in_use_.clear();
  mapped_.clear();
}

void IpcOperations::let_go_of_read() {
  while (!in_use_.empty() && in_use_.front().read.is_done()) in_use_.pop_front();
}

/// Where nothing is kept, mappings are closed once nobody reads them.
device::Steps IpcOperations::end_operation() {
  let_go_of_read();
  if (keeps_) co_return;
  const Event over = bench_.events().take();
  bench_.stream().record(over);
  co_await device::until([&over] { return over.is_done(); });
  in_use_.clear();
  peers_.let();
}

std::vector<DevicePointer> IpcOperations::inputs(std::size_t offset_bytes) const {
  std::vector<DevicePointer> addresses;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    addresses.push_back((direct_.empty() ? base(rank) : direct_[rank]) + offset_bytes);
  }
  return addresses;
}

void IpcOperations::pack(const device::ChunkLayout& layout, const Travel& travel) {
  moves_.clear();
  for (const device::Piece& piece : layout.pieces()) {
    const void* const input = piece.segment->input;
    moves_.push_back(
        {.source = input != nullptr ? at(input, piece.offset, size_of(travel.from)) : nullptr,
         .target = writable(base(peers_.own()) + piece.position * travel.width()),
         .count = piece.count});
  }
  bench_.mover().move(moves_, {.from = travel.from,
                               .to = travel.dtype,
                               .scaling = {travel.pack_scale, 1.0},
                               .op = travel.op});
  counters_.packed_bytes.fetch_add(layout.extent() * travel.width(), std::memory_order_relaxed);
}

void IpcOperations::reduce_all(const device::ChunkLayout& layout, const Travel& travel) {
  counters_.one_shots.fetch_add(1, std::memory_order_relaxed);
  const device::Piece& first = layout.pieces().front();
  const bool is_alone = layout.pieces().size() == 1 && travel.from == travel.dtype;
  void* const output = first.segment->output;
  if (is_alone && output != nullptr) {
    bench_.kernels().reduce(bench_.stream(), address_of(at(output, first.offset, travel.width())),
                            inputs(0), layout.extent(), travel.reduction());
    return;
  }
  bench_.kernels().reduce(bench_.stream(), scratch(), inputs(0), layout.extent(),
                          travel.reduction());
  moves_.clear();
  for (const device::Piece& piece : layout.pieces()) {
    if (piece.segment->output == nullptr) continue;
    moves_.push_back({.source = pointer_to(scratch() + piece.position * travel.width()),
                      .target = at(piece.segment->output, piece.offset, size_of(travel.from)),
                      .count = piece.count});
  }
  bench_.mover().move(moves_, {.from = travel.dtype, .to = travel.from});
}

/// Of the chunk at `target` and at the same place of all ranks' buffers.
void IpcOperations::reduce_share(std::size_t extent, const Travel& travel, DevicePointer target) {
  const Share share = share_of(peers_.own(), peers_.size(), extent, travel.alignment());
  if (share.begin == share.end) return;
  const std::size_t offset = share.begin * travel.width();
  bench_.kernels().reduce(bench_.stream(), target + offset, inputs(offset), share.end - share.begin,
                          travel.reduction());
}

/// From where each share was reduced.
void IpcOperations::unpack_shares(const device::ChunkLayout& layout, const Travel& travel) {
  const std::size_t ranks = peers_.size();
  moves_.clear();
  for (const device::Piece& piece : layout.pieces()) {
    if (piece.segment->output == nullptr) continue;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const Share share = share_of(rank, ranks, layout.extent(), travel.alignment());
      const std::size_t begin = std::max(share.begin, piece.position);
      const std::size_t end = std::min(share.end, piece.position + piece.count);
      if (begin >= end) continue;
      moves_.push_back({.source = pointer_to(base(rank) + begin * travel.width()),
                        .target = at(piece.segment->output, piece.offset + begin - piece.position,
                                     size_of(travel.from)),
                        .count = end - begin});
    }
  }
  bench_.mover().move(moves_, {.from = travel.dtype, .to = travel.from});
}

device::Steps IpcOperations::allreduce(AllreduceCall call) {
  peers_.hold();
  const int divisor = call.divisor(exchange_.size());
  Travel travel =
      travel_of(call.dtype, call.op, call.prescale, call.postscale, divisor, call.wire_dtype);
  std::optional<Reduction> over_hosts;
  if (between_ != nullptr) {
    const TwoLevelTravel levels = two_level_travel(call, divisor, peers_.size());
    travel = levels.within_host;
    over_hosts = levels.over_hosts;
  }
  const std::size_t bytes =
      call.segments.size() == 1 ? call.segments[0].count * size_of(call.dtype) : 0;
  if (!over_hosts && direct_bytes_ > 0 && bytes >= direct_bytes_ && travel.is_plain()) {
    bool was_done = false;
    device::Steps steps = allreduce_directly(call, travel, was_done);
    co_await steps;
    if (was_done) co_return;
  }
  device::ChunkLayout layout(call.segments, elements_of_half(travel.width()), travel.alignment());
  while (layout.next()) {
    begin_chunk();
    pack(layout, travel);
    hand_over(Mark::Packed);
    co_await device::until([this] { return has_come(); });
    peers_.wait_for_all(Mark::Packed, half_);
    if (!over_hosts && layout.extent() * travel.width() <= one_shot_bytes_) {
      reduce_all(layout, travel);
    } else {
      device::Steps combining = combine_shares(layout, travel, over_hosts);
      co_await combining;
    }
    end_chunk();
  }
  if (over_hosts) {
    // The next operation may be one that uses the fusion buffer otherwise.
    hand_over(Mark::Read);
    co_await device::until([this] { return has_come(); });
    peers_.wait_for_all(Mark::Read, half_);
  }
  device::Steps end = end_operation();
  co_await end;
}

/// The second part of a two-shot: everybody reduces a share, and reads those of the others.
device::Steps IpcOperations::combine_shares(const device::ChunkLayout& layout, const Travel& travel,
                                            const std::optional<Reduction>& over_hosts) {
  counters_.two_shots.fetch_add(1, std::memory_order_relaxed);
  const std::size_t extent = layout.extent();
  const DevicePointer target = base(peers_.own());
  reduce_share(extent, travel, target);
  if (over_hosts) {
    counters_.across_hosts.fetch_add(1, std::memory_order_relaxed);
    const Share share = share_of(peers_.own(), peers_.size(), extent, travel.alignment());
    const Share longest = share_of(0, peers_.size(), extent, travel.alignment());
    device::Steps crossing =
        between_->reduce(target + share.begin * travel.width(), share.end - share.begin,
                         longest.end - longest.begin, *over_hosts);
    co_await crossing;
  }
  hand_over(Mark::Reduced);
  co_await device::until([this] { return has_come(); });
  peers_.wait_for_all(Mark::Reduced, half_);
  unpack_shares(layout, travel);
}

IpcOperations::Offer IpcOperations::offer_of(const Segment& segment, std::size_t bytes) const {
  if (segment.input == nullptr || segment.input != segment.output) return {};
  try {
    const auto exported = export_memory(*bench_.context(), address_of(segment.input), bytes);
    if (!exported) return {};
    const bool is_whole = exported->base % block_bytes_ == 0 && exported->size % block_bytes_ == 0;
    return is_whole ? Offer{.can = true, .memory = *exported} : Offer{};
  } catch (const DriverError&) {
    return {};  // memory of a kind that has no handle: it is packed
  }
}

/// Where each rank's tensor is, for this one.
void IpcOperations::map_all(const std::vector<Offer>& offers) {
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    const ExportedMemory& memory = offers[rank].memory;
    if (rank == peers_.own()) {
      direct_.push_back(memory.base + memory.offset);
      continue;
    }
    mapped_.push_back(peers_.map(memory, rank));
    direct_.push_back(mapped_.back()->address_of(memory));
  }
}

/// Why it does not work, or an empty text. `was_open`: the driver takes it for what is open.
std::string IpcOperations::try_to_map(const std::vector<Offer>& offers, bool& was_open) {
  drop_mapping();
  return problem_of([&] {
    try {
      map_all(offers);
    } catch (const DriverError& error) {
      was_open = error.result() == kAlreadyMapped;
      throw;
    }
  });
}

void IpcOperations::drop_mapping() {
  mapped_.clear();
  direct_.clear();
}

/// Whether every rank can export its tensor, and map those of the others. Ends behind the handover
/// that says that they are ready to be read.
device::Steps IpcOperations::agree_on_mapping(const Segment& segment, std::size_t bytes,
                                              bool& agreed) {
  exchange_.start(offer_of(segment, bytes));
  co_await device::until([this] { return exchange_.poll(); });
  const std::vector<Offer> offers = exchange_.all<Offer>();
  agreed = std::all_of(offers.begin(), offers.end(), [](const Offer& offer) { return offer.can; });
  if (!agreed) co_return;
  let_go_of_read();  // so that there is room
  bool was_open = false;
  std::string problem = try_to_map(offers, was_open);
  if (was_open) {
    // Of memory that its owner has freed, and that is still read here.
    co_await device::until([this] { return in_use_.empty() || in_use_.back().read.is_done(); });
    in_use_.clear();
    for (const int rank : peers_.names()) cache_.drop(rank);
    problem = try_to_map(offers, was_open);
  }
  begin_chunk();
  hand_over(Mark::Packed, !problem.empty());
  co_await device::until([this] { return has_come(); });
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    agreed = agreed && exchange_.of<Handover>(rank).refuses == 0;
  }
  if (agreed) co_return;
  end_chunk();
  drop_mapping();
  device::Steps giving_up = give_mapping_up(problem);
  co_await giving_up;
}

/// It would fail again.
device::Steps IpcOperations::give_mapping_up(std::string problem) {
  exchange_.start(Verdict(problem));
  co_await device::until([this] { return exchange_.poll(); });
  direct_bytes_ = 0;
  warn_(
      "tensors cannot be mapped by other ranks, and are copied into the fusion buffer from now "
      "on: " +
      first_problem(exchange_.all<Verdict>(), peers_.names()));
}

/// The tensor itself in place of the fusion buffer: it is neither packed nor unpacked. As the
/// program may write to it afterwards, the others have read it before this rank's work is over.
device::Steps IpcOperations::allreduce_directly(AllreduceCall call, Travel travel, bool& was_done) {
  const Segment& segment = call.segments[0];
  device::Steps mapping = agree_on_mapping(segment, segment.count * travel.width(), was_done);
  co_await mapping;
  if (!was_done) co_return;
  counters_.direct.fetch_add(1, std::memory_order_relaxed);
  peers_.wait_for_all(Mark::Packed, half_);
  reduce_share(segment.count, travel, direct_[peers_.own()]);
  hand_over(Mark::Reduced);
  co_await device::until([this] { return has_come(); });
  peers_.wait_for_all(Mark::Reduced, half_);
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    const Share share = share_of(rank, peers_.size(), segment.count, travel.alignment());
    if (rank == peers_.own() || share.begin == share.end) continue;
    const std::size_t offset = share.begin * travel.width();
    bench_.stream().copy(direct_[peers_.own()] + offset, direct_[rank] + offset,
                         (share.end - share.begin) * travel.width(), "reading the result");
  }
  hand_over(Mark::Read);
  co_await device::until([this] { return has_come(); });
  peers_.wait_for_all(Mark::Read, half_);
  Event read = bench_.events().take();
  bench_.stream().record(read);
  in_use_.push_back({std::exchange(mapped_, {}), std::move(read)});
  direct_.clear();
  device::Steps end = end_operation();
  co_await end;
}

}  // namespace ronde::cuda
