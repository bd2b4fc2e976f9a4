// SPDX-License-Identifier: Apache-2.0
// Every rank exchanges with every other one directly.
#include <vector>

#include "core/src/algorithms/algorithms.h"
#include "core/src/algorithms/exchange.h"

namespace ronde {
Steps pairwise_reducescatter(PeerMessages& messages, const std::byte* input, std::byte* output,
                             Parts parts, Reduction reduction) {
  const std::size_t n = messages.size();
  const std::size_t rank = messages.rank();
  const std::size_t own_bytes = parts.count(rank);
  std::byte* const incoming = messages.scratch(own_bytes * (n - 1));
  std::vector<const void*> operands(n, input + parts.offset(rank));
  for (std::size_t distance = 1; distance < n; ++distance) {
    const std::size_t from = (rank + n - distance) % n;
    const std::size_t to = (rank + distance) % n;
    std::byte* const memory = incoming + (distance - 1) * own_bytes;
    operands[from] = memory;
    messages.receive(from, memory, own_bytes);
    messages.send(to, input + parts.offset(to), parts.count(to));
    if (distance % kPairsAtOnce == 0) co_await messages.ended();
  }
  co_await messages.ended();
  messages.reduce(output, operands, own_bytes, reduction);
}

Steps pairwise_allgather(PeerMessages& messages, std::byte* output, Parts parts) {
  const std::size_t n = messages.size();
  const std::size_t rank = messages.rank();
  for (std::size_t distance = 1; distance < n; ++distance) {
    const std::size_t from = (rank + n - distance) % n;
    messages.receive(from, output + parts.offset(from), parts.count(from));
    messages.send((rank + distance) % n, output + parts.offset(rank), parts.count(rank));
    if (distance % kPairsAtOnce == 0) co_await messages.ended();
  }
  co_await messages.ended();
}

Steps pairwise_allreduce(PeerMessages& messages, std::byte* data, std::size_t count,
                         Reduction reduction) {
  const Parts parts(even_counts(count, messages.size()), size_of(reduction.dtype));
  std::byte* const own = data + parts.offset(messages.rank());
  co_await pairwise_reducescatter(messages, data, own, parts, reduction);
  co_await pairwise_allgather(messages, data, parts);
}

Steps pairwise_alltoall(PeerMessages& messages, const std::byte* input, std::byte* output,
                        Parts sent, Parts received) {
  const std::size_t n = messages.size();
  const std::size_t rank = messages.rank();
  messages.copy(output + received.offset(rank), input + sent.offset(rank), sent.count(rank));
  for (std::size_t distance = 1; distance < n; ++distance) {
    const std::size_t from = (rank + n - distance) % n;
    const std::size_t to = (rank + distance) % n;
    messages.receive(from, output + received.offset(from), received.count(from));
    messages.send(to, input + sent.offset(to), sent.count(to));
    if (distance % kPairsAtOnce == 0) co_await messages.ended();
  }
  co_await messages.ended();
}

}  // namespace ronde
