// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/moves.h"
#include "backends/gpu/chunk_layout.h"
#include "backends/nccl/operation.h"

namespace ronde::nccl {

/// Bytes from the root to all: a chunk that is a piece of a single tensor from where it is to where
/// it goes, others by way of the fusion buffer.
class Broadcast final : public Work {
 public:
  Broadcast(Links& links, const BroadcastCall& call);

 private:
  void issue() override;
  bool is_root() const noexcept { return static_cast<int>(rank()) == root_; }
  void send_piece(const gpu::Piece& piece) const;
  void send_packed() const;

  const std::vector<Segment> segments_;
  const int root_;
  const std::size_t width_;
  const cuda::KernelSet::How as_it_is_;
  gpu::ChunkLayout layout_;
};

/// What the next two have in common: parts of all ranks.
class GatheringWork : public Work {
 protected:
  GatheringWork(Links& links, const Placement& place, std::string doing, void* output,
                DataType dtype)
      : Work(links, place, std::move(doing)), output_(output), width_(size_of(dtype)) {}

  /// Elements of a part in a chunk, at most.
  std::size_t most() const noexcept { return fusion_bytes() / size() / width_; }
  /// Where a rank's part of a chunk goes, which begins with that element of the result. A rank
  /// without memory for that has it written into the fusion buffer.
  void* place_of(std::size_t from, std::size_t element) const {
    return output_ != nullptr ? cuda::at(output_, element, width_)
                              : cuda::at(unregistered(), from * most(), width_);
  }

  void* const output_;  ///< null: there is no memory for it
  const std::size_t width_;
};

/// From memory to memory. Equal parts that are not too many go by one call; else each rank sends
/// its own to all, chunk by chunk.
class Allgather final : public GatheringWork {
 public:
  Allgather(Links& links, const AllgatherCall& call);

 private:
  void issue() override;
  void gather_chunk(const cuda::RankParts& parts) const;

  const void* const input_;
  const std::vector<std::size_t> counts_;
};

/// From memory to memory, chunk by chunk as an uneven allgather.
class Alltoall final : public GatheringWork {
 public:
  Alltoall(Links& links, const AlltoallCall& call);

 private:
  void issue() override;
  void exchange_chunk(const cuda::RankParts& sent, const cuda::RankParts& received) const;
  void keep_own_part() const;

  const void* const input_;
  const std::vector<std::size_t> send_counts_;
  const std::vector<std::size_t> receive_counts_;
  const std::size_t largest_count_;
};

/// Of two ranks, on their own channel.
class Message final : public Work {
 public:
  Message(Links& links, const SendCall& call);
  Message(Links& links, const RecvCall& call);

 private:
  void issue() override;

  const void* const input_ = nullptr;
  void* const output_ = nullptr;  ///< null: it is sent
  const std::size_t bytes_;
  const int other_;  ///< of the two
};

}  // namespace ronde::nccl
