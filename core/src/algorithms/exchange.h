// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/src/algorithms/peer_messages.h"
#include "core/src/base/steps.h"

namespace ronde {

/// Pieces of a large message that are on a link at once: enough for it not to wait where an answer
/// takes 20 ms.
inline constexpr std::size_t kPiecesAtOnce = 4;
inline constexpr std::size_t kPieceBytes = std::size_t{2} << 20;

/// `bytes` to or from `peer`.
template <typename Byte>
struct Transfer {
  std::size_t peer;
  Byte* data;
  std::size_t bytes;
};

/// Sends and receives at once. `use(begin, bytes)` is called for each piece of what has come, in
/// order, while the next ones are on the link. Both ranks of a transfer exchange by this function.
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

}  // namespace ronde
