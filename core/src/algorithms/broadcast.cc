// SPDX-License-Identifier: Apache-2.0
// Broadcasts. Ranks are counted from the root here.
#include <algorithm>
#include <vector>

#include "core/src/algorithms/algorithms.h"
#include "core/src/algorithms/exchange.h"

namespace ronde {
namespace {

/// A rank of the binomial tree: one whose lowest set bit is b has its parent b below, and its
/// children at the distances below b.
struct TreePlace {
  TreePlace(std::size_t rank, std::size_t ranks, std::size_t root_rank)
      : size(ranks), root(root_rank), distance((rank + ranks - root_rank) % ranks) {
    while (lowest < size && (distance & lowest) == 0) lowest *= 2;
  }

  std::size_t rank_at(std::size_t away) const noexcept { return (root + away) % size; }

  std::size_t size;
  std::size_t root;
  std::size_t distance;    ///< from the root
  std::size_t lowest = 1;  ///< set bit of the distance; of the root, the least above all
};

/// Sends data down the tree. `piece(distance, ranks)`: the bytes that the top of a subtree gets.
template <typename Piece>
Steps send_down(PeerMessages& messages, std::byte* data, TreePlace place, Piece piece) {
  if (place.distance > 0) {
    const auto [offset, bytes] = piece(place.distance, place.lowest);
    messages.receive(place.rank_at(place.distance - place.lowest), data + offset, bytes);
    co_await messages.ended();
  }
  for (std::size_t step = place.lowest / 2; step > 0; step /= 2) {
    const std::size_t child = place.distance + step;
    if (child >= place.size) continue;
    // One after the other: the first subtree is the largest, and should not share the link.
    const auto [offset, bytes] = piece(child, step);
    messages.send(place.rank_at(child), data + offset, bytes);
    co_await messages.ended();
  }
}

}  // namespace

Steps binomial_broadcast(PeerMessages& messages, std::byte* data, std::size_t bytes,
                         std::size_t root) {
  const auto all = [bytes](std::size_t, std::size_t) { return Parts::Piece{0, bytes}; };
  return send_down(messages, data, TreePlace(messages.rank(), messages.size(), root), all);
}

Steps scatter_allgather_broadcast(PeerMessages& messages, std::byte* data, std::size_t bytes,
                                  std::size_t root) {
  const std::size_t n = messages.size();
  // The part of a rank is numbered by its distance.
  const Parts parts(even_counts(bytes, n), 1);
  const auto parts_of = [&](std::size_t distance, std::size_t ranks) {
    const std::size_t begin = parts.offset(distance);
    return Parts::Piece{begin, parts.offset(std::min(distance + ranks, n)) - begin};
  };
  co_await send_down(messages, data, TreePlace(messages.rank(), n, root), parts_of);
  co_await ring_allgather(messages, data, parts, root);
}

Steps chain_broadcast(PeerMessages& messages, std::byte* data, std::size_t bytes, std::size_t root,
                      std::size_t chunk) {
  const std::size_t n = messages.size();
  const std::size_t distance = (messages.rank() + n - root) % n;
  const std::size_t before = (messages.rank() + n - 1) % n;
  const std::size_t next = (messages.rank() + 1) % n;
  const std::size_t chunks = (bytes + chunk - 1) / chunk;
  const auto size_of_chunk = [&](std::size_t i) { return std::min(chunk, bytes - i * chunk); };
  // Several chunks are on each link, so that it does not wait for this rank.
  const std::size_t lanes = std::min(chunks, kPiecesAtOnce);
  std::vector<PeerMessages> incoming(lanes, messages);
  std::vector<PeerMessages> outgoing(lanes, messages);
  const bool receives = distance > 0;
  const bool sends = distance + 1 < n;
  for (std::size_t i = 0; receives && i < lanes; ++i) {
    incoming[i].receive(before, data + i * chunk, size_of_chunk(i));
  }
  for (std::size_t i = 0; i < chunks; ++i) {
    if (receives) {
      co_await incoming[i % lanes].ended();
      const std::size_t ahead = i + lanes;
      if (ahead < chunks) {
        incoming[i % lanes].receive(before, data + ahead * chunk, size_of_chunk(ahead));
      }
    }
    if (!sends) continue;
    co_await outgoing[i % lanes].ended();
    outgoing[i % lanes].send(next, data + i * chunk, size_of_chunk(i));
  }
  for (PeerMessages& rest : outgoing) co_await rest.ended();
}

}  // namespace ronde
