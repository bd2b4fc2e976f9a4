// SPDX-License-Identifier: Apache-2.0
// An allreduce in three levels: Note [A round over several hosts]. The ranks of a host stage a
// round in shared memory; the owner of each shard reduces it over them, and then over the hosts
// together with the owners on these, in a coroutine of one of the algorithms between hosts.
// Several rounds are in flight at once, as many as the slot buffer has slots.
#include "backends/hierarchical/hierarchical_allreduce.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "core/src/algorithms/algorithms.h"

namespace ronde::hierarchical {
namespace {

using shm::Piece;
using shm::Slice;

/// Elements that are widened, reduced and narrowed at a time, in the first-level cache.
constexpr std::size_t kBlock = 1024;

/// Calls `visit(begin, count)` for blocks that make up `count` elements.
template <typename Visit>
void in_blocks(std::size_t count, Visit visit) {
  for (std::size_t at = 0; at < count; at += kBlock) visit(at, std::min(kBlock, count - at));
}

/// Splits `final` into two steps. If the sums of hosts are rounded to a wire type, they are first
/// scaled to about the size of their inputs: a sum may overflow f16 although the average does not,
/// and a sum scaled further would underflow. `converts`: the call has a wire_dtype. `largest_host`:
/// the number of its ranks.
FinalSteps final_steps(ReduceOp op, bool converts, const Scaling& final, std::size_t largest_host) {
  const double scale = std::abs(final.factor) / final.divisor;
  if (!converts || op != ReduceOp::Sum || scale >= 1) return {{}, final};
  // A power of two scales without rounding.
  const auto power = static_cast<double>(std::bit_ceil(largest_host));
  if (scale * power >= 1) return {final, {}};
  return {{1 / power, 1}, {final.factor * power, final.divisor}};
}

}  // namespace

shm::SlotBufferShape slot_buffer_shape(const Topology& topology) {
  return {.ranks = static_cast<std::size_t>(topology.local_size),
          .slots = kRoundSlots,
          .slot_bytes = round_bytes(shards_of(topology))};
}

void Hierarchy::add_counters(StatsGroup& group) const {
  for (std::size_t algorithm = 0; algorithm < used_.size(); ++algorithm) {
    const std::uint64_t rounds = used_[algorithm].get();
    if (rounds == 0) continue;
    group.counters.emplace_back(
        "rounds_" + std::string(to_string(static_cast<Algorithm>(algorithm))), rounds);
  }
}

Hierarchy::Hierarchy(std::shared_ptr<shm::SlotBufferContext> slot_context, Shards who,
                     std::shared_ptr<const FabricChannel> owners, AlgorithmTable algorithms,
                     bool exact)
    : buffer(std::move(slot_context)),
      shards(std::move(who)),
      owners_(std::move(owners)),
      algorithms_(std::move(algorithms)),
      exact_(exact) {
  if (!shards.own) return;
  constexpr std::size_t kWidening = 2;  // of half types
  const shm::SlotBufferShape& shape = buffer->buffer.shape();
  // A shard is only divided if two have messages that are large enough.
  const std::size_t undivided = 2 * shards.least_message * shards.hosts;
  const std::size_t shard_bytes =
      std::max(shape.slot_bytes / shards.count, std::min(shape.slot_bytes, undivided)) +
      2 * shm::kCacheLine;
  partials_.assign(shape.slots, std::vector<std::byte>(kWidening * shard_bytes));
  const auto register_memory = [this](std::byte* begin, std::size_t bytes) {
    registered_.push_back(owners_->fabric->register_memory(begin, bytes));
  };
  for (std::size_t slot = 0; slot < shape.slots; ++slot) {
    register_memory(partials_[slot].data(), partials_[slot].size());
    register_memory(buffer->buffer.slot(buffer->buffer.rank(), slot), shape.slot_bytes);
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
      final_(call.final),
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
      between_hosts_({.dtype = partial_dtype_, .op = call.op}),
      reducing_(staging_),
      elements_(buffer().shape().slots, 0),
      exchanges_(buffer().shape().slots),
      widened_(widens() ? buffer().ranks() * kBlock : 0) {
  buffer().reserve(absolute(staging_.rounds()));
}

bool HierarchicalAllreduce::may_stage(std::uint64_t round) {
  const std::uint64_t own = absolute(round);
  return buffer().next_staged() == own && own < buffer().next_consumed() + buffer().shape().slots &&
         buffer().may_stage(own);
}

void HierarchicalAllreduce::stage(std::uint64_t round) {
  elements_[slot_of(round)] = staging_.next_count();
  const Slice own = owns_shard() ? shard(*hierarchy_->shards.own, round) : Slice{0, 0};
  stage_outside(round, own);
}

bool HierarchicalAllreduce::reduce(std::uint64_t round) {
  if (reducing_.at_end()) return false;
  if (!owns_shard()) {
    if (buffer().next_reduced() != absolute(round)) return false;
    reducing_.advance([](const Piece&) {});
    buffer().publish_reduced(absolute(round));
    return true;
  }
  if (!buffer().staged_by_all(absolute(round))) return false;
  const Slice own = shard(*hierarchy_->shards.own, round);
  reducing_.advance([&](const Piece& piece) {
    const Slice range = piece.within(own);
    if (range.count() == 0) return;
    reduce_piece(round, piece, range, partial(round) + (range.begin - own.begin) * partial_bytes_);
  });
  auto& exchange_of_round = exchanges_[slot_of(round)];
  exchange_of_round = std::make_unique<Exchange>(hierarchy_, slot_of(round));
  exchange_of_round->steps = exchange(round, exchange_of_round->messages);
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

Algorithm HierarchicalAllreduce::choose(std::size_t bytes) const {
  // The pairwise algorithm rounds to a wire_dtype only once over all hosts.
  if (hierarchy_->exact_ || format_.converts()) return Algorithm::Pairwise;
  return hierarchy_->algorithms_.choose(Collective::Allreduce, hierarchy_->shards.hosts, bytes);
}

/// Reduces the sums of this host with those of the others, to the results in the own slot.
Steps HierarchicalAllreduce::exchange(std::uint64_t round, PeerMessages& messages) {
  const std::size_t count = shard(*hierarchy_->shards.own, round).count();
  if (count == 0) co_return;
  const Algorithm algorithm = choose(count * partial_bytes_);
  hierarchy_->used_[static_cast<std::size_t>(algorithm)].add();
  const bool halves = algorithm == Algorithm::HalvingDoubling;
  if (algorithm == Algorithm::RecursiveDoubling) {
    co_await recursive_doubling_allreduce(messages, partial(round), count, between_hosts_);
    finish(own_results(round), partial(round), count);
  } else if (halves && !std::has_single_bit(messages.size())) {
    co_await halving_doubling_allreduce(messages, partial(round), count, between_hosts_);
    finish(own_results(round), partial(round), count);
  } else {
    co_await scatter_and_gather(round, messages, algorithm);
  }
}

/// The owner on each host finishes a part of the shard, and sends the result to the others.
Steps HierarchicalAllreduce::scatter_and_gather(std::uint64_t round, PeerMessages& messages,
                                                Algorithm algorithm) {
  const Shards& shards = hierarchy_->shards;
  const std::vector<std::size_t> counts =
      shards.parts({absolute(round), elements_[slot_of(round)]}, element_bytes_);
  const Parts sums(counts, partial_bytes_);
  const Parts results(counts, element_bytes_);
  std::byte* const own_sums = partial(round) + sums.offset(shards.own_host);
  std::byte* const own = own_results(round) + results.offset(shards.own_host);
  const std::size_t count = counts[shards.own_host];
  if (algorithm == Algorithm::Pairwise) {
    co_await pairwise_reducescatter(messages, partial(round), widens() ? own_sums : own, sums,
                                    over_hosts_);
    if (widens()) finish(own, own_sums, count);
    co_await pairwise_allgather(messages, own_results(round), results);
  } else if (algorithm == Algorithm::HalvingDoubling) {
    co_await halving_reducescatter(messages, partial(round), own_sums, sums, between_hosts_);
    finish(own, own_sums, count);
    co_await recursive_doubling_allgather(messages, own_results(round), results);
  } else {
    co_await ring_reducescatter(messages, partial(round), own_sums, sums, between_hosts_);
    finish(own, own_sums, count);
    co_await ring_allgather(messages, own_results(round), results);
  }
}

/// Scales and rounds the sums over all hosts.
void HierarchicalAllreduce::finish(std::byte* results, const std::byte* sums,
                                   std::size_t count) const {
  if (count == 0) return;
  if (widens()) {
    kernels().narrow(results, sums, count, {.half = dtype_, .scaling = final_}, Store::Regular);
    return;
  }
  const std::array<const void*, 1> input = {sums};
  kernels().reduce(results, input, count, over_hosts_, Store::Regular);
}

void HierarchicalAllreduce::advance_exchanges() {
  for (std::uint64_t round = complete_; round < rounds_reduced(); ++round) {
    auto& exchange_of_round = exchanges_[slot_of(round)];
    if (!exchange_of_round) continue;
    const std::uint64_t before = exchange_of_round->steps.progress();
    const bool has_ended = exchange_of_round->steps.poll();
    if (has_ended || exchange_of_round->steps.progress() != before) ++exchanged_;
    if (has_ended) exchange_of_round.reset();
  }
  while (complete_ < rounds_reduced() && !exchanges_[slot_of(complete_)] &&
         buffer().next_reduced() == absolute(complete_)) {
    buffer().publish_reduced(absolute(complete_));
    ++complete_;
  }
}

bool HierarchicalAllreduce::may_consume(std::uint64_t round) {
  if (owns_shard()) {
    advance_exchanges();
    if (complete_ <= round) return false;
  }
  return buffer().next_consumed() == absolute(round) && rounds_reduced() > round &&
         buffer().reduced_by_all(absolute(round));
}

void HierarchicalAllreduce::consume(std::uint64_t round) {
  consuming_.advance([&](const Piece& piece) {
    for (std::size_t owner = 0; owner < hierarchy_->shards.count; ++owner) {
      copy_results(piece, shard(owner, round), buffer().slot(owner, absolute(round)));
    }
  });
  buffer().publish_consumed(absolute(round));
}

Slice HierarchicalAllreduce::shard(std::size_t owner, std::uint64_t round) const {
  return hierarchy_->shards.shard(owner, {absolute(round), elements_[slot_of(round)]},
                                  element_bytes_);
}

std::size_t HierarchicalAllreduce::slot_of(std::uint64_t round) const noexcept {
  return absolute(round) % elements_.size();
}

/// The address of the results of the own shard.
std::byte* HierarchicalAllreduce::own_results(std::uint64_t round) {
  const std::size_t begin = shard(*hierarchy_->shards.own, round).begin;
  return buffer().slot(buffer().rank(), absolute(round)) + begin * element_bytes_;
}

std::byte* HierarchicalAllreduce::partial(std::uint64_t round) noexcept {
  return hierarchy_->partials_[slot_of(round)].data();
}

}  // namespace ronde::hierarchical
