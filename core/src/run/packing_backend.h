// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "core/src/base/counter.h"
#include "core/src/run/fusion_buffer.h"
#include "ronde/plugin/backend.h"

namespace ronde {

class Parts;

/// Makes a backend that wants one packed segment (Capabilities::wants_packed) take whole segment
/// lists, every op and scale: packs them into the fusion buffer, with scale and widening on the
/// way, lets the backend work on it in place, and unpacks. A larger list goes in chunks. Where the
/// backend takes several operations at once (Capabilities::operations_in_flight), so many chunks
/// are in flight, kMostSlots at most: the next ones are packed while the network has the first, and
/// an operation starts its chunks while the one before waits for its last ones.
///
/// User memory is only touched by this class, on its thread; the wrapped backend sees nothing but
/// the fusion buffer. So after abort() the user's memory is safe to free, whatever the backend's
/// library still does (Note [Buffers after a group error]).
///
/// Thread-safety: as Backend. All operations that have begun are to be polled.
class PackingBackend final : public Backend {
 public:
  /// Host memory only. `size`: number of ranks. `buffer_bytes`: limit of the fusion buffer, which
  /// the slots divide among them.
  PackingBackend(std::unique_ptr<Backend> packed, int size, int rank, std::size_t buffer_bytes);

  std::string_view name() const noexcept override { return packed_->name(); }
  Capabilities capabilities() const override;
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override;
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override;
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override;
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override;
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override;
  std::unique_ptr<Operation> send(const SendCall& call) override;
  std::unique_ptr<Operation> recv(const RecvCall& call) override;
  std::optional<std::chrono::nanoseconds> tend() override { return packed_->tend(); }
  int prepare_sleep() override { return packed_->prepare_sleep(); }
  void abort() noexcept override;
  void close() override { packed_->close(); }
  StatsGroup stats() const override;

 private:
  class ChunkedOperation;
  class CompressedAllreduce;
  class Message;
  template <typename Pack, typename Unpack, typename Launch>
  class SegmentStream;
  template <typename Pack, typename Unpack, typename Launch>
  class PartStream;

  /// Chunks in flight: beyond this a network gains nothing from more, and caches lose.
  static constexpr std::size_t kMostSlots = 3;

  /// Memory for a chunk, and the state of the chunk in it, to which its calls of the packed backend
  /// point.
  struct Slot {
    explicit Slot(std::size_t limit) : buffer(limit) {}

    FusionBuffer buffer;
    bool is_taken = false;
    std::size_t offset = 0;  ///< of the first unit in the operation
    std::size_t count = 0;   ///< units
    std::byte* memory = nullptr;
    Segment segment;
    std::vector<std::size_t> in_pieces, out_pieces;  ///< units of every part
    std::unique_ptr<Operation> operation;            ///< of the packed backend; null: it has ended
  };

  struct Counters {
    Counter chunks, packed_bytes, unpacked_bytes, buffer_bytes;
  };

  /// Make operations of functions for a chunk: see SegmentStream and PartStream.
  /// @{
  std::unique_ptr<Operation> stream_segments(std::span<const Segment> segments, std::size_t width,
                                             bool reads, auto pack, auto unpack, auto launch);
  std::unique_ptr<Operation> stream_parts(Parts in, Parts out, std::size_t most, std::size_t width,
                                          auto pack, auto unpack, auto launch);
  /// @}
  /// As stream_parts(), of plain bytes. `most`: elements of the largest part, of all ranks.
  std::unique_ptr<Operation> stream_bytes(const void* input, std::span<const std::size_t> in_counts,
                                          void* output, std::span<const std::size_t> out_counts,
                                          std::size_t most, DataType dtype, auto launch);
  std::size_t own() const noexcept { return static_cast<std::size_t>(rank_); }

  const std::unique_ptr<Backend> packed_;
  const Capabilities packed_capabilities_;
  const int size_;
  const int rank_;
  const std::size_t slot_count_;
  const std::size_t slot_bytes_;   ///< limit of each
  const std::size_t chunk_bytes_;  ///< most bytes of a segment list in a slot
  /// Where packed_ can keep them, they outlive this after abort().
  const std::shared_ptr<std::deque<Slot>> slots_ = std::make_shared<std::deque<Slot>>();
  std::deque<ChunkedOperation*> starting_;  ///< operations with chunks to start, oldest first
  Counters counters_;
};

}  // namespace ronde
