// SPDX-License-Identifier: Apache-2.0
// Recursive halving: ranks at the distances n / 2, n / 4, ... exchange halves of what each still
// has to reduce, until one part is left; recursive doubling gathers the parts.
#include "core/src/algorithms/algorithms.h"
#include "core/src/algorithms/combine.h"
#include "core/src/algorithms/exchange.h"
#include "core/src/algorithms/power_of_two.h"

namespace ronde {
namespace {

/// Of the parts of `size` places, a power of two, leaves that of the own place reduced in `data`.
/// All else in it is overwritten.
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
        {peer, incoming, kept_bytes}, [=, &reduction](std::size_t from, std::size_t bytes) {
          std::byte* const own = data + kept + from;
          const std::byte* const other = incoming + from;
          combine(own, is_lower ? own : other, is_lower ? other : own, bytes, reduction);
        });
    if (!is_lower) first += distance;
  }
}

/// The other way round: every place has its part, and gets those of all.
Steps double_again(PeerMessages& messages, const PowerOfTwo& ranks, std::byte* data,
                   const Parts& parts) {
  const std::size_t place = *ranks.place;
  for (std::size_t distance = 1; distance < ranks.size; distance *= 2) {
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

Steps halving_doubling_allreduce(PeerMessages& messages, std::byte* data, std::size_t count,
                                 const Reduction& reduction) {
  const PowerOfTwo ranks(messages.rank(), messages.size());
  const std::size_t width = size_of(reduction.dtype);
  if (ranks.takes) {
    messages.send(*ranks.takes, data, count * width);
    co_await messages.ended();
    messages.receive(*ranks.takes, data, count * width);
    co_await messages.ended();
    co_return;
  }
  if (ranks.gives) {
    std::byte* const incoming = messages.scratch(count * width);
    messages.receive(*ranks.gives, incoming, count * width);
    co_await messages.ended();
    combine(data, incoming, data, count * width, reduction);
  }
  const Parts parts(even_counts(count, ranks.size), width);
  co_await halve(messages, ranks, data, parts, reduction);
  co_await double_again(messages, ranks, data, parts);
  if (!ranks.gives) co_return;
  messages.send(*ranks.gives, data, count * width);
  co_await messages.ended();
}

Steps halving_reducescatter(PeerMessages& messages, const std::byte* input, std::byte* output,
                            const Parts& parts, const Reduction& reduction) {
  const PowerOfTwo ranks(messages.rank(), messages.size());
  std::byte* const data = messages.scratch(parts.total());
  copy_bytes(data, input, parts.total());
  co_await halve(messages, ranks, data, parts, reduction);
  copy_bytes(output, data + parts.offset(messages.rank()), parts.count(messages.rank()));
}

}  // namespace ronde
