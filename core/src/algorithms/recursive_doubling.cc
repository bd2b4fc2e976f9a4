// SPDX-License-Identifier: Apache-2.0
// Ranks at growing distances exchange all that they have.
#include "core/src/algorithms/algorithms.h"
#include "core/src/algorithms/combine.h"
#include "core/src/algorithms/power_of_two.h"

namespace ronde {

Steps recursive_doubling_allreduce(PeerMessages& messages, std::byte* data, std::size_t count,
                                   const Reduction& reduction) {
  const PowerOfTwo ranks(messages.rank(), messages.size());
  const std::size_t bytes = count * size_of(reduction.dtype);
  if (ranks.takes) {
    messages.send(*ranks.takes, data, bytes);
    co_await messages.ended();
    messages.receive(*ranks.takes, data, bytes);
    co_await messages.ended();
    co_return;
  }
  std::byte* const incoming = messages.scratch(bytes);
  if (ranks.gives) {
    messages.receive(*ranks.gives, incoming, bytes);
    co_await messages.ended();
    combine(data, incoming, data, bytes, reduction);
  }
  for (std::size_t distance = 1; distance < ranks.size; distance *= 2) {
    const std::size_t peer = *ranks.place ^ distance;
    messages.receive(ranks.rank_at(peer), incoming, bytes);
    messages.send(ranks.rank_at(peer), data, bytes);
    co_await messages.ended();
    // The lower place first on both sides, so that both have the same bits.
    const bool is_lower = *ranks.place < peer;
    combine(data, is_lower ? data : incoming, is_lower ? incoming : data, bytes, reduction);
  }
  if (!ranks.gives) co_return;
  messages.send(*ranks.gives, data, bytes);
  co_await messages.ended();
}

Steps recursive_doubling_allgather(PeerMessages& messages, std::byte* output, const Parts& parts) {
  const std::size_t rank = messages.rank();
  for (std::size_t distance = 1; distance < messages.size(); distance *= 2) {
    // Both ranks have the parts of as many ranks as their distance, which begin at a multiple of
    // it.
    const std::size_t peer = rank ^ distance;
    const auto begin = [&](std::size_t of) { return parts.offset(of / distance * distance); };
    const auto end = [&](std::size_t of) {
      const std::size_t last = of / distance * distance + distance - 1;
      return parts.offset(last) + parts.count(last);
    };
    messages.receive(peer, output + begin(peer), end(peer) - begin(peer));
    messages.send(peer, output + begin(rank), end(rank) - begin(rank));
    co_await messages.ended();
  }
}

}  // namespace ronde
