// SPDX-License-Identifier: Apache-2.0
// Recursive doubling: ranks at the distances 1, 2, 4, ... exchange all that they have. Recursive
// halving: ranks at the distances n / 2, n / 4, ... exchange halves of what each still has to
// reduce, until one part is left; recursive doubling then gathers the parts.
#include "core/src/algorithms/algorithms.h"
#include "core/src/algorithms/exchange.h"

namespace ronde {
namespace {

/// Adds the data of the ranks that take no part to that of their neighbours. `incoming`: memory for
/// `bytes`, on a rank that is given data.
Steps fold(PeerMessages& messages, const PowerOfTwo& ranks, std::byte* data, std::byte* incoming,
           std::size_t bytes, const Reduction& reduction) {
  if (ranks.takes) messages.send(*ranks.takes, data, bytes);
  if (ranks.gives) messages.receive(*ranks.gives, incoming, bytes);
  co_await messages.ended();
  if (ranks.gives) messages.combine(data, incoming, data, bytes, reduction);
}

/// Sends the result to the ranks that took no part.
Steps unfold(PeerMessages& messages, const PowerOfTwo& ranks, std::byte* data, std::size_t bytes) {
  if (ranks.takes) messages.receive(*ranks.takes, data, bytes);
  if (ranks.gives) messages.send(*ranks.gives, data, bytes);
  co_await messages.ended();
}

/// Leaves the part of the own place reduced in `data`, whose `parts` are those of the places. All
/// else in it is overwritten.
Steps halve(PeerMessages& messages, const PowerOfTwo& ranks, std::byte* data, const Parts& parts,
            const Reduction& reduction) {
  const std::size_t place = *ranks.place;
  std::byte* const incoming = messages.scratch(parts.total());
  std::size_t first = 0;  // place of what is left; its parts are those of 2 * distance places
  for (std::size_t distance = ranks.size / 2; distance > 0; distance /= 2) {
    const std::size_t peer = ranks.rank_at(place ^ distance);
    const bool is_lower = (place & distance) == 0;
    const std::size_t middle = parts.offset(first + distance);
    const std::size_t begin = parts.offset(first);
    const std::size_t last = first + 2 * distance - 1;
    const std::size_t end = parts.offset(last) + parts.count(last);
    const std::size_t kept = is_lower ? begin : middle;
    const std::size_t kept_bytes = is_lower ? middle - begin : end - middle;
    co_await exchange(
        messages, {peer, data + (is_lower ? middle : begin), end - begin - kept_bytes},
        {peer, incoming, kept_bytes},
        [=, &messages, &reduction](std::size_t from, std::size_t bytes) {
          std::byte* const own = data + kept + from;
          const std::byte* const other = incoming + from;
          messages.combine(own, is_lower ? own : other, is_lower ? other : own, bytes, reduction);
        });
    if (!is_lower) first += distance;
  }
}

/// Gathers the parts of all places at each of them.
Steps gather(PeerMessages& messages, PowerOfTwo ranks, std::byte* data, Parts parts) {
  const std::size_t place = *ranks.place;
  for (std::size_t distance = 1; distance < ranks.size; distance *= 2) {
    // Each of the two ranks has the parts of `distance` places, from a multiple of `distance` on.
    const std::size_t other = place ^ distance;
    const auto offset = [&](std::size_t of) { return parts.offset(of / distance * distance); };
    const auto bytes = [&](std::size_t of) {
      const std::size_t last = of / distance * distance + distance - 1;
      return parts.offset(last) + parts.count(last) - offset(of);
    };
    messages.receive(ranks.rank_at(other), data + offset(other), bytes(other));
    messages.send(ranks.rank_at(other), data + offset(place), bytes(place));
    co_await messages.ended();
  }
}

}  // namespace

Steps recursive_doubling_allreduce(PeerMessages& messages, std::byte* data, std::size_t count,
                                   Reduction reduction) {
  const PowerOfTwo ranks(messages.rank(), messages.size());
  const std::size_t bytes = count * size_of(reduction.dtype);
  std::byte* const incoming = ranks.place ? messages.scratch(bytes) : nullptr;
  if (ranks.takes || ranks.gives) {
    co_await fold(messages, ranks, data, incoming, bytes, reduction);
  }
  for (std::size_t distance = 1; ranks.place && distance < ranks.size; distance *= 2) {
    const std::size_t peer = *ranks.place ^ distance;
    messages.receive(ranks.rank_at(peer), incoming, bytes);
    messages.send(ranks.rank_at(peer), data, bytes);
    co_await messages.ended();
    // The lower place first on both sides, so that both have the same bits.
    const bool is_lower = *ranks.place < peer;
    messages.combine(data, is_lower ? data : incoming, is_lower ? incoming : data, bytes,
                     reduction);
  }
  if (ranks.takes || ranks.gives) co_await unfold(messages, ranks, data, bytes);
}

Steps halving_doubling_allreduce(PeerMessages& messages, std::byte* data, std::size_t count,
                                 Reduction reduction) {
  const PowerOfTwo ranks(messages.rank(), messages.size());
  const std::size_t width = size_of(reduction.dtype);
  std::byte* const incoming = ranks.gives ? messages.scratch(count * width) : nullptr;
  if (ranks.takes || ranks.gives) {
    co_await fold(messages, ranks, data, incoming, count * width, reduction);
  }
  if (ranks.place) {
    const Parts parts(even_counts(count, ranks.size), width);
    co_await halve(messages, ranks, data, parts, reduction);
    co_await gather(messages, ranks, data, parts);
  }
  if (ranks.takes || ranks.gives) co_await unfold(messages, ranks, data, count * width);
}

Steps halving_reducescatter(PeerMessages& messages, const std::byte* input, std::byte* output,
                            Parts parts, Reduction reduction) {
  const PowerOfTwo ranks(messages.rank(), messages.size());
  std::byte* const data = messages.scratch(parts.total());
  messages.copy(data, input, parts.total());
  co_await halve(messages, ranks, data, parts, reduction);
  messages.copy(output, data + parts.offset(messages.rank()), parts.count(messages.rank()));
}

Steps recursive_doubling_allgather(PeerMessages& messages, std::byte* output, Parts parts) {
  return gather(messages, PowerOfTwo(messages.rank(), messages.size()), output, std::move(parts));
}

}  // namespace ronde
