// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "backends/cuda/stream.h"

namespace ronde::cuda {

/// The halves of a fusion buffer, which chunks use in turn.
constexpr std::size_t kHalves = 2;

/// What a rank has done to a half of its fusion buffer.
enum class Mark : std::uint8_t {
  Packed,   ///< its elements are there
  Reduced,  ///< its share of the result is there
  Read,     ///< it has read what it needs of the others'
};
constexpr std::size_t kMarks = 3;

/// Where something of a mark and a half is, among those of all.
constexpr std::size_t index_of(Mark mark, std::size_t half) noexcept {
  return static_cast<std::size_t>(mark) * kHalves + half;
}

/// How the streams of a host's ranks tell each other how far they are. All ranks record the same
/// marks in the same order, and have agreed on one kind.
///
/// Note [No wait for nothing]
/// A wait is queued only once all ranks are known to have queued what it is for, which an exchange
/// between the ranks' threads tells. So everything that a wait depends on was queued before it, on
/// whichever GPU: it ends even where streams share a queue of the hardware, or processes a GPU, as
/// long as the driver submits work in the order of calls (it does not know of flags), and no rank
/// dies.
///
/// Thread-safety: one thread at a time.
class PeerSignals {
 public:
  virtual ~PeerSignals() = default;
  PeerSignals() = default;
  PeerSignals(const PeerSignals&) = delete;
  PeerSignals& operator=(const PeerSignals&) = delete;

  /// Tells the others once the stream has come here.
  virtual void record(Mark mark, std::size_t half, Stream& stream) = 0;
  /// What is queued on the stream from now on runs after all ranks' last recordings, of which there
  /// may be none.
  virtual void wait_for_all(Mark mark, std::size_t half, Stream& stream) = 0;

  /// The group is dead: ends the waits of this rank, also those to come, where that can be had. It
  /// waits for nothing, and is repeated until all is over.
  virtual void release() noexcept {}
  /// Closes what belongs to other ranks; nothing that is queued uses it.
  virtual void forget() noexcept {}
};

}  // namespace ronde::cuda
