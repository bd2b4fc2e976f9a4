// SPDX-License-Identifier: Apache-2.0
// An allreduce in three levels: Note [A round over several hosts]. The ranks of a host stage a
// round in shared memory; the owner of each shard reduces it and sends each other host its part;
// when the other hosts' sums have arrived, the owner combines its part and sends the result back.
// Several rounds are in flight at once, as many as the slot buffer has slots.
#include "backends/hierarchical/hierarchical_allreduce.h"

#include <algorithm>
#include <utility>

namespace ronde::hierarchical {
namespace {

using shm::Piece;
using shm::Slice;

/// Elements that are widened, reduced and narrowed at a time: in the first-level cache.
constexpr std::size_t kBlock = 1024;

/// Calls `visit(begin, count)` for blocks that make up `count` elements.
template <typename Visit>
void in_blocks(std::size_t count, Visit visit) {
  for (std::size_t at = 0; at < count; at += kBlock) visit(at, std::min(kBlock, count - at));
}

}  // namespace

Hierarchy::Hierarchy(std::shared_ptr<shm::SlotBufferContext> slot_context, Shards who,
                     std::unique_ptr<Wire> own_wire)
    : buffer(std::move(slot_context)), shards(std::move(who)), wire(std::move(own_wire)) {
  if (!shards.own) return;
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kWidening = 2;  // of half types
  const shm::SlotBufferShape& shape = buffer->buffer.shape();
  const std::size_t shard_bytes = shape.slot_bytes / shards.count + 2 * kLine;
  incoming_bytes_ = kWidening * (shard_bytes / shards.hosts + 2 * kLine);
  buffers_.resize(shape.slots);
  for (Buffers& buffers : buffers_) {
    buffers.partial.resize(kWidening * shard_bytes);
    buffers.incoming.resize(shards.hosts * incoming_bytes_);
  }
}

HierarchicalAllreduce::HierarchicalAllreduce(std::shared_ptr<Hierarchy> hierarchy,
                                             const AllreduceCall& call)
    : SlotAllreduce(
          hierarchy->buffer, call,
          hierarchy->buffer->stores.borrow(
              total_elements(call.segments) * size_of(call.effective_wire_dtype()), false)),
      hierarchy_(std::move(hierarchy)),
      dtype_(format_.wire()),
      partial_dtype_(is_half(dtype_) && !format_.converts() ? DataType::F32 : dtype_),
      element_bytes_(size_of(dtype_)),
      partial_bytes_(size_of(partial_dtype_)),
      prescale_(format_.prescale()),
      final_(final_scaling(dtype_, call.op, call.postscale,
                           call.divisor(static_cast<std::size_t>(hierarchy_->shards.ranks)))),
      final_steps_(
          final_steps(call.op, format_.converts(), final_, hierarchy_->shards.largest_host)),
      // Half types are scaled where they are widened and narrowed.
      within_host_({.dtype = partial_dtype_,
                    .op = call.op,
                    .prescale = widens() ? 1.0 : prescale_,
                    .final = final_steps_.within_host}),
      over_hosts_({.dtype = partial_dtype_,
                   .op = call.op,
                   .final = widens() ? Scaling{} : final_steps_.over_hosts}),
      reducing_(staging_),
      elements_(buffer().shape().slots, 0),
      host_inputs_(hierarchy_->shards.hosts, nullptr),
      widened_(widens() ? buffer().ranks() * kBlock : 0) {}

HierarchicalAllreduce::~HierarchicalAllreduce() {
  if (owns_shard() && !consuming_.at_end()) hierarchy_->wire->keep_for_ever(hierarchy_);
}

void HierarchicalAllreduce::stage(std::uint64_t round) {
  elements_[slot_of(round)] = staging_.next_count();
  const Slice own = owns_shard() ? shard(*hierarchy_->shards.own, round) : Slice{0, 0};
  if (owns_shard()) expect_messages(round);
  stage_outside(round, own);
}

/// Posts receives as early as there is memory for them, so that no message arrives unexpected.
void HierarchicalAllreduce::expect_messages(std::uint64_t round) {
  const Shards& shards = hierarchy_->shards;
  const std::size_t own_bytes = part(shards.own_host, round).count() * partial_bytes_;
  for (std::size_t host = 0; host < shards.hosts; ++host) {
    if (host == shards.own_host) continue;
    if (own_bytes > 0) {
      hierarchy_->wire->receive(batch(round, Hierarchy::kPartialsReceived), host,
                                Wire::Kind::Partial, incoming(round, host), own_bytes);
    }
    const Slice theirs = part(host, round);
    if (theirs.count() == 0) continue;
    hierarchy_->wire->receive(batch(round, Hierarchy::kResultsReceived), host, Wire::Kind::Result,
                              own_slot(round) + theirs.begin * element_bytes_,
                              theirs.count() * element_bytes_);
  }
}

bool HierarchicalAllreduce::reduce(std::uint64_t round) {
  if (reducing_.at_end()) return false;
  if (!owns_shard()) {
    reducing_.advance([](const Piece&) {});
    buffer().publish_reduced(absolute(round));
    return true;
  }
  if (!buffer().staged_by_all(absolute(round))) return false;
  const Slice own = shard(*hierarchy_->shards.own, round);
  std::byte* const partial = hierarchy_->buffers_[slot_of(round)].partial.data();
  reducing_.advance([&](const Piece& piece) {
    const Slice range = piece.within(own);
    if (range.count() == 0) return;
    reduce_piece(round, piece, range, partial + (range.begin - own.begin) * partial_bytes_);
  });
  send_partials(round);
  return true;
}

/// Reduces the elements of the round in `range`, which belong to `piece`.
void HierarchicalAllreduce::reduce_piece(std::uint64_t round, const Piece& piece,
                                         const Slice& range, std::byte* output) {
  const auto reduce_some = [&](std::size_t at, std::size_t count) {
    const std::size_t begin = range.begin + at;
    find_inputs(round, piece, begin - piece.position, count);
    if (widens()) widen_inputs(count);
    kernels().reduce(output + at * partial_bytes_, inputs_, count, within_host_, Store::Regular);
  };
  if (widens() || format_.converts()) {
    in_blocks(range.count(), reduce_some);
  } else {
    reduce_some(0, range.count());
  }
}

void HierarchicalAllreduce::widen_inputs(std::size_t count) {
  for (std::size_t rank = 0; rank < inputs_.size(); ++rank) {
    if (inputs_[rank] == nullptr) continue;
    float* const widened = widened_.data() + rank * kBlock;
    kernels().widen(widened, inputs_[rank], count, {.half = dtype_, .scaling = {prescale_, 1.0}},
                    Store::Regular);
    inputs_[rank] = widened;
  }
}

void HierarchicalAllreduce::send_partials(std::uint64_t round) {
  const Shards& shards = hierarchy_->shards;
  const std::byte* const partial = hierarchy_->buffers_[slot_of(round)].partial.data();
  const std::size_t first = shard(*shards.own, round).begin;
  for (std::size_t host = 0; host < shards.hosts; ++host) {
    if (host == shards.own_host) continue;
    const Slice theirs = part(host, round);
    send(round, host, Wire::Kind::Partial, partial + (theirs.begin - first) * partial_bytes_,
         theirs.count() * partial_bytes_);
  }
}

/// Processes arrived messages, in the order of rounds.
void HierarchicalAllreduce::advance_wire() {
  Wire& wire = *hierarchy_->wire;
  while (combined_ < rounds_reduced() &&
         wire.done(batch(combined_, Hierarchy::kPartialsReceived))) {
    combine_hosts(combined_);
    send_results(combined_);
    ++combined_;
  }
  while (complete_ < combined_ && wire.done(batch(complete_, Hierarchy::kResultsReceived))) {
    buffer().publish_reduced(absolute(complete_));
    ++complete_;
  }
}

void HierarchicalAllreduce::combine_hosts(std::uint64_t round) {
  const Shards& shards = hierarchy_->shards;
  const Slice own = part(shards.own_host, round);
  const std::size_t first = shard(*shards.own, round).begin;
  const std::byte* const partial = hierarchy_->buffers_[slot_of(round)].partial.data();
  std::byte* const results = own_slot(round) + own.begin * element_bytes_;
  const auto combine_some = [&](std::size_t at, std::size_t count) {
    for (std::size_t host = 0; host < shards.hosts; ++host) {
      const std::byte* const operand = host == shards.own_host
                                           ? partial + (own.begin - first) * partial_bytes_
                                           : incoming(round, host);
      host_inputs_[host] = operand + at * partial_bytes_;
    }
    std::byte* const output = results + at * element_bytes_;
    if (!widens()) {
      kernels().reduce(output, host_inputs_, count, over_hosts_, Store::Regular);
      return;
    }
    kernels().reduce(widened_.data(), host_inputs_, count, over_hosts_, Store::Regular);
    kernels().narrow(output, widened_.data(), count, {.half = dtype_, .scaling = final_},
                     Store::Regular);
  };
  if (widens()) {
    in_blocks(own.count(), combine_some);
  } else if (own.count() > 0) {
    combine_some(0, own.count());
  }
}

void HierarchicalAllreduce::send_results(std::uint64_t round) {
  const Shards& shards = hierarchy_->shards;
  const Slice own = part(shards.own_host, round);
  for (std::size_t host = 0; host < shards.hosts; ++host) {
    if (host == shards.own_host) continue;
    send(round, host, Wire::Kind::Result, own_slot(round) + own.begin * element_bytes_,
         own.count() * element_bytes_);
  }
}

void HierarchicalAllreduce::send(std::uint64_t round, std::size_t host, Wire::Kind kind,
                                 const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;
  hierarchy_->wire->send(batch(round, Hierarchy::kSent), host, kind, from, bytes);
  hierarchy_->counters.messages.fetch_add(1, std::memory_order_relaxed);
  hierarchy_->counters.sent_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

bool HierarchicalAllreduce::may_consume(std::uint64_t round) {
  if (owns_shard()) {
    advance_wire();
    // Messages are still sent from the slot, which is free once it is consumed.
    const bool is_over =
        complete_ > round && hierarchy_->wire->done(batch(round, Hierarchy::kSent));
    if (!is_over) return false;
  }
  return rounds_reduced() > round && buffer().reduced_by_all(absolute(round));
}

void HierarchicalAllreduce::consume(std::uint64_t round) {
  consuming_.advance([&](const Piece& piece) {
    for (std::size_t index = 0; index < hierarchy_->shards.count; ++index) {
      copy_results(piece, shard(index, round), buffer().slot(index, absolute(round)));
    }
  });
  buffer().publish_consumed(absolute(round));
}

Slice HierarchicalAllreduce::shard(std::size_t index, std::uint64_t round) const {
  return hierarchy_->shards.shard(index, elements_[slot_of(round)], element_bytes_);
}

Slice HierarchicalAllreduce::part(std::size_t host, std::uint64_t round) const {
  return hierarchy_->shards.part(host, elements_[slot_of(round)], element_bytes_);
}

std::size_t HierarchicalAllreduce::slot_of(std::uint64_t round) const noexcept {
  return absolute(round) % elements_.size();
}

std::size_t HierarchicalAllreduce::batch(std::uint64_t round,
                                         Hierarchy::Batch kind) const noexcept {
  return slot_of(round) * Hierarchy::kBatchesOfSlot + kind;
}

std::byte* HierarchicalAllreduce::own_slot(std::uint64_t round) noexcept {
  return buffer().slot(buffer().rank(), absolute(round));
}

std::byte* HierarchicalAllreduce::incoming(std::uint64_t round, std::size_t host) noexcept {
  return hierarchy_->buffers_[slot_of(round)].incoming.data() + host * hierarchy_->incoming_bytes_;
}

}  // namespace ronde::hierarchical
