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

}  // namespace

Steps binomial_broadcast(PeerMessages& messages, std::byte* data, std::size_t bytes,
                         std::size_t root) {
  const TreePlace place(messages.rank(), messages.size(), root);
  if (place.distance > 0) {
    messages.receive(place.rank_at(place.distance - place.lowest), data, bytes);
    co_await messages.ended();
  }
  for (std::size_t step = place.lowest / 2; step > 0; step /= 2) {
    const std::size_t child = place.distance + step;
    if (child >= place.size) continue;
    // One after the other: the first subtree is the largest, and should not share the link.
    messages.send(place.rank_at(child), data, bytes);
    co_await messages.ended();
  }
}

Steps scatter_allgather_broadcast(PeerMessages& messages, std::byte* data, std::size_t bytes,
                                  std::size_t root) {
  const std::size_t n = messages.size();
  const TreePlace place(messages.rank(), n, root);
  // The part of a rank is numbered by its distance; a subtree has those of the distances from its
  // top's until below that plus its lowest bit.
  const EvenParts parts(bytes, n);
  const auto begin = [&](std::size_t away) { return away < n ? parts.offset(away) : bytes; };
  if (place.distance > 0) {
    messages.receive(place.rank_at(place.distance - place.lowest), data + begin(place.distance),
                     begin(place.distance + place.lowest) - begin(place.distance));
    co_await messages.ended();
  }
  for (std::size_t step = place.lowest / 2; step > 0; step /= 2) {
    const std::size_t child = place.distance + step;
    if (child >= n) continue;
    messages.send(place.rank_at(child), data + begin(child), begin(child + step) - begin(child));
    co_await messages.ended();
  }
  const auto before = [&](std::size_t steps) { return (place.distance + n - steps) % n; };
  for (std::size_t step = 1; step < n; ++step) {
    const std::size_t sent = before(step - 1);
    const std::size_t part = before(step);
    messages.receive(place.rank_at(before(1)), data + parts.offset(part), parts.count(part));
    messages.send(place.rank_at((place.distance + 1) % n), data + parts.offset(sent),
                  parts.count(sent));
    co_await messages.ended();
  }
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
