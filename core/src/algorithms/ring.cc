// SPDX-License-Identifier: Apache-2.0
// Around a ring: each rank sends to the next one and receives from the one before.
#include <array>

#include "core/src/algorithms/algorithms.h"
#include "core/src/algorithms/exchange.h"

namespace ronde {

// Part p starts at rank p + 1, and every rank that it passes adds its own, the last one rank p.
Steps ring_reducescatter(PeerMessages& messages, const std::byte* input, std::byte* output,
                         Parts parts, Reduction reduction) {
  const std::size_t n = messages.size();
  const std::size_t rank = messages.rank();
  const auto part_before = [&](std::size_t distance) { return (rank + n - distance) % n; };
  const std::size_t largest = parts.largest();
  std::array<std::byte*, 2> sums = {messages.scratch(largest), messages.scratch(largest)};
  const std::byte* outgoing = input + parts.offset(part_before(1));
  for (std::size_t step = 1; step < n; ++step) {
    const std::size_t sent = part_before(step);
    const std::size_t part = part_before(step + 1);
    std::byte* const sum = sums[step % 2];
    std::byte* const to = step + 1 == n ? output : sum;
    const std::byte* const own = input + parts.offset(part);
    co_await exchange(messages, {(rank + 1) % n, outgoing, parts.count(sent)},
                      {part_before(1), sum, parts.count(part)},
                      [=, &messages, &reduction](std::size_t begin, std::size_t bytes) {
                        messages.combine(to + begin, sum + begin, own + begin, bytes, reduction);
                      });
    outgoing = sum;
  }
}

Steps ring_allgather(PeerMessages& messages, std::byte* output, Parts parts, std::size_t first) {
  const std::size_t n = messages.size();
  const std::size_t rank = messages.rank();
  const auto part_before = [&](std::size_t distance) {
    return (rank + 2 * n - first - distance) % n;
  };
  for (std::size_t step = 1; step < n; ++step) {
    const std::size_t sent = part_before(step - 1);
    const std::size_t part = part_before(step);
    messages.receive((rank + n - 1) % n, output + parts.offset(part), parts.count(part));
    messages.send((rank + 1) % n, output + parts.offset(sent), parts.count(sent));
    co_await messages.ended();
  }
}

}  // namespace ronde
