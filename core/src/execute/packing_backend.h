// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "core/src/base/counter.h"
#include "core/src/execute/fusion_buffer.h"
#include "ronde/plugin/backend.h"

namespace ronde {

/// Makes a backend that wants one packed segment (Capabilities::wants_packed) take whole segment
/// lists, every op and scale: packs them into the fusion buffer, with scale and widening on the
/// way, lets the backend work on it in place, and unpacks. A larger list goes in chunks.
///
/// User memory is only touched by this class, on its thread; the wrapped backend sees nothing but
/// the fusion buffer. So after abort() the user's memory is safe to free, whatever the backend's
/// library still does (Note [Buffers after a group error]).
///
/// Thread-safety: as Backend. One operation at a time.
class PackingBackend final : public Backend {
 public:
  /// Host memory only. `size`: number of ranks, what ReduceOp::Average divides by. `buffer_bytes`:
  /// limit of the fusion buffer.
  PackingBackend(std::unique_ptr<Backend> packed, int size, int rank, std::size_t buffer_bytes);
  ~PackingBackend() override;

  std::string_view name() const noexcept override { return packed_->name(); }
  Capabilities capabilities() const override;
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override;
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override;
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override;
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override;
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override;
  std::unique_ptr<Operation> send(const SendCall& call) override;
  std::unique_ptr<Operation> recv(const RecvCall& call) override;
  void abort() noexcept override;
  void close() override;
  StatsGroup stats() const override;

 private:
  class ChunkedOperation;
  class SegmentStream;
  class Allreduce;
  class CompressedAllreduce;
  class Broadcast;
  class PartStream;
  class ByteStream;
  class Allgather;
  class Alltoall;
  class Reducescatter;
  class Message;

  struct Counters {
    Counter chunks, packed_bytes, unpacked_bytes, buffer_bytes;
  };

  std::unique_ptr<Operation> compressed_allreduce(const AllreduceCall& call);
  /// The type in which the packed backend reduces `dtype`.
  DataType wire(DataType dtype) const;
  std::size_t own() const noexcept { return static_cast<std::size_t>(rank_); }

  const std::unique_ptr<Backend> packed_;
  const Capabilities packed_capabilities_;
  const int size_;
  const int rank_;
  FusionBuffer buffer_;
  const std::size_t chunk_bytes_;  ///< most of a segment list that is in the buffer at a time
  Counters counters_;
};

}  // namespace ronde
