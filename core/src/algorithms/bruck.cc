// SPDX-License-Identifier: Apache-2.0
// Bruck's algorithms: ranks at the distances 1, 2, 4, ... forward all data in that direction.
#include <algorithm>

#include "core/src/algorithms/algorithms.h"
#include "core/src/algorithms/exchange.h"

namespace ronde {

Steps bruck_allgather(PeerMessages& messages, std::byte* output, Parts parts) {
  const std::size_t n = messages.size();
  const std::size_t rank = messages.rank();
  // The parts of this rank, the next one, ... lie one behind the other: bytes of the first `some`.
  const auto bytes_from = [&](std::size_t first, std::size_t some) {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < some; ++i) bytes += parts.count((first + i) % n);
    return bytes;
  };
  std::byte* const turned = messages.scratch(parts.total());
  messages.copy(turned, output + parts.offset(rank), parts.count(rank));
  std::size_t filled = parts.count(rank);
  for (std::size_t distance = 1; distance < n; distance *= 2) {
    const std::size_t some = std::min(distance, n - distance);
    const std::size_t above = (rank + distance) % n;
    const std::size_t coming = bytes_from(above, some);
    messages.receive(above, turned + filled, coming);
    messages.send((rank + n - distance) % n, turned, bytes_from(rank, some));
    co_await messages.ended();
    filled += coming;
  }
  const std::size_t until_end = parts.total() - parts.offset(rank);
  messages.copy(output + parts.offset(rank), turned, until_end);
  messages.copy(output, turned + until_end, parts.offset(rank));
}

// Block i of a rank is what it sends to the rank i above it. In round k the blocks whose number has
// bit k move 2^k ranks up; once all bits are done, block i has come from the rank i below.
Steps bruck_alltoall(PeerMessages& messages, const std::byte* input, std::byte* output, Parts sent,
                     Parts received, std::size_t largest) {
  const std::size_t n = messages.size();
  const std::size_t rank = messages.rank();
  std::byte* const blocks = messages.scratch(n * largest);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t to = (rank + i) % n;
    std::byte* const block = blocks + i * largest;
    messages.copy(block, input + sent.offset(to), sent.count(to));
    std::fill(block + sent.count(to), block + largest, std::byte{0});
  }
  const std::size_t most = (n + 1) / 2 * largest;
  std::byte* const outgoing = messages.scratch(most);
  std::byte* const incoming = messages.scratch(most);
  for (std::size_t bit = 1; bit < n; bit *= 2) {
    std::size_t filled = 0;
    for (std::size_t i = bit; i < n; ++i) {
      if ((i & bit) == 0) continue;
      messages.copy(outgoing + filled, blocks + i * largest, largest);
      filled += largest;
    }
    messages.receive((rank + n - bit) % n, incoming, filled);
    messages.send((rank + bit) % n, outgoing, filled);
    co_await messages.ended();
    std::size_t taken = 0;
    for (std::size_t i = bit; i < n; ++i) {
      if ((i & bit) == 0) continue;
      messages.copy(blocks + i * largest, incoming + taken, largest);
      taken += largest;
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t from = (rank + n - i) % n;
    messages.copy(output + received.offset(from), blocks + i * largest, received.count(from));
  }
}

}  // namespace ronde
