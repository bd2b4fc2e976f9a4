// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <optional>
#include <vector>

#include "core/src/algorithms/peer_messages.h"
#include "core/src/base/steps.h"

// Parts that the algorithms share.
namespace ronde {

/// The number of pieces of a large message on a link at once: enough for it not to wait where an
/// answer takes 20 ms.
inline constexpr std::size_t kPiecesAtOnce = 4;
inline constexpr std::size_t kPieceBytes = std::size_t{2} << 20;

/// A message of `bytes` to or from `peer`.
template <typename Byte>
struct Transfer {
  std::size_t peer;
  Byte* data;
  std::size_t bytes;
};

/// Sends and receives at once. Calls `use(begin, bytes)` for each received piece, in order, while
/// the next ones are on the link. Both ranks of a transfer exchange by this function.
template <typename Use>
Steps exchange(PeerMessages& messages, Transfer<const std::byte> outgoing,
               Transfer<std::byte> incoming, Use use) {
  const std::size_t bytes = std::max(outgoing.bytes, incoming.bytes);
  const std::size_t pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
  const auto end = [](std::size_t piece, std::size_t of) {
    return std::min(piece * kPieceBytes, of);
  };
  std::vector<PeerMessages> lanes(std::min(pieces, kPiecesAtOnce), messages);
  const auto post = [&](std::size_t piece) {
    PeerMessages& lane = lanes[piece % kPiecesAtOnce];
    const std::size_t received = end(piece, incoming.bytes);
    const std::size_t sent = end(piece, outgoing.bytes);
    lane.receive(incoming.peer, incoming.data + received,
                 end(piece + 1, incoming.bytes) - received);
    lane.send(outgoing.peer, outgoing.data + sent, end(piece + 1, outgoing.bytes) - sent);
  };
  for (std::size_t piece = 0; piece < lanes.size(); ++piece) post(piece);
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    co_await lanes[piece % kPiecesAtOnce].ended();
    if (piece + kPiecesAtOnce < pieces) post(piece + kPiecesAtOnce);
    const std::size_t begin = end(piece, incoming.bytes);
    use(begin, end(piece + 1, incoming.bytes) - begin);
  }
}

/// Lets algorithms that need a power of two of ranks run on any number: where r ranks are too many,
/// each even rank of the first 2 r gives its data to the next rank, takes no part, and gets the
/// result from it [Thakur].
struct PowerOfTwo {
  PowerOfTwo(std::size_t rank, std::size_t ranks)
      : size(std::bit_floor(ranks)), folded(ranks - size) {
    if (rank >= 2 * folded) {
      place = rank - folded;
    } else if (rank % 2 == 1) {
      place = rank / 2;
      gives = rank - 1;
    } else {
      takes = rank + 1;
    }
  }

  /// Returns the rank at a place.
  std::size_t rank_at(std::size_t where) const noexcept {
    return where < folded ? 2 * where + 1 : where + folded;
  }

  std::size_t size;                  ///< ranks that take part: the power of two
  std::size_t folded;                ///< ranks that do not
  std::optional<std::size_t> place;  ///< of this rank among those that do
  std::optional<std::size_t> gives;  ///< the rank that gives this one its data
  std::optional<std::size_t> takes;  ///< the rank that this one gives its data to
};

}  // namespace ronde
