// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "backends/device/chunk_layout.h"
#include "backends/nccl/operation.h"

namespace ronde::nccl {

/// Bytes from the root to all: a chunk that is a piece of a single tensor from where it is to where
/// it goes, others by way of the fusion buffer.
class Broadcast final : public LaneWork {
 public:
  Broadcast(Links& links, const BroadcastCall& call);

 private:
  void issue() override;
  bool is_root() const noexcept { return static_cast<int>(rank()) == call_.root; }
  void send_piece(const device::Piece& piece) const;
  void send_packed() const;

  const OwnedCall<BroadcastCall> owned_;
  const BroadcastCall& call_ = owned_.call;
  const std::size_t width_;
  device::ChunkLayout layout_;
};

/// From memory to memory. Equal parts that are not too many go by one call; else each rank sends
/// its own to all, chunk by chunk: a rank without memory for the result has the chunks of others
/// written into the fusion buffer.
class Allgather final : public LaneWork {
 public:
  Allgather(Links& links, const AllgatherCall& call);

 private:
  void issue() override;
  void gather_chunk(std::size_t done, std::size_t most) const;

  const void* const input_;
  void* const output_;
  const std::vector<std::size_t> counts_;
  const std::size_t width_;
};

/// From memory to memory, chunk by chunk as an uneven allgather.
class Alltoall final : public LaneWork {
 public:
  Alltoall(Links& links, const AlltoallCall& call);

 private:
  void issue() override;
  void exchange_chunk(std::size_t done, std::size_t most) const;
  void keep_own_part() const;

  const void* const input_;
  void* const output_;
  const std::vector<std::size_t> send_counts_;
  const std::vector<std::size_t> receive_counts_;
  const std::size_t largest_count_;
  const std::size_t width_;
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
