// SPDX-License-Identifier: Apache-2.0
// Every rank exchanges with every other one directly.
#include <vector>

#include "core/src/algorithms/algorithms.h"
#include "core/src/algorithms/exchange.h"

namespace ronde {
namespace {

/// Calls `post(from, to)` with the ranks at each distance, and waits for what it has posted.
template <typename Post>
Steps with_all_peers(PeerMessages& messages, Post post) {
  const std::size_t n = messages.size();
  for (std::size_t distance = 1; distance < n; ++distance) {
    post((messages.rank() + n - distance) % n, (messages.rank() + distance) % n);
    if (distance % kPairsAtOnce == 0) co_await messages.ended();
  }
  co_await messages.ended();
}

}  // namespace

Steps pairwise_reducescatter(PeerMessages& messages, const std::byte* input, std::byte* output,
                             Parts parts, Reduction reduction) {
  const std::size_t n = messages.size();
  const std::size_t rank = messages.rank();
  const std::size_t own_bytes = parts.count(rank);
  std::byte* incoming = messages.scratch(own_bytes * (n - 1));
  std::vector<const void*> operands(n, input + parts.offset(rank));
  co_await with_all_peers(messages, [&](std::size_t from, std::size_t to) {
    operands[from] = incoming;
    messages.receive(from, incoming, own_bytes);
    messages.send(to, input + parts.offset(to), parts.count(to));
    incoming += own_bytes;
  });
  messages.reduce(output, operands, own_bytes, reduction);
}

Steps pairwise_allgather(PeerMessages& messages, std::byte* output, Parts parts) {
  const std::size_t rank = messages.rank();
  co_await with_all_peers(messages, [&](std::size_t from, std::size_t to) {
    messages.receive(from, output + parts.offset(from), parts.count(from));
    messages.send(to, output + parts.offset(rank), parts.count(rank));
  });
}

Steps pairwise_alltoall(PeerMessages& messages, const std::byte* input, std::byte* output,
                        Parts sent, Parts received) {
  const std::size_t rank = messages.rank();
  messages.copy(output + received.offset(rank), input + sent.offset(rank), sent.count(rank));
  co_await with_all_peers(messages, [&](std::size_t from, std::size_t to) {
    messages.receive(from, output + received.offset(from), received.count(from));
    messages.send(to, input + sent.offset(to), sent.count(to));
  });
}

}  // namespace ronde
