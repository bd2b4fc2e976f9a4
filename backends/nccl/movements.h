// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "backends/device/chunk_layout.h"
#include "backends/nccl/lane_operation.h"

namespace ronde::nccl {

/// Bytes from the root to all: a chunk that is a piece of a single tensor from where it is to where
/// it goes, others by way of the fusion buffer.
class Broadcast final : public LaneOperation {
 public:
  Broadcast(Links& links, const BroadcastCall& call);

 private:
  device::Steps run();
  bool is_root() const noexcept { return static_cast<int>(rank()) == call_.root; }
  bool needs_fusion() const;
  void start_chunk();
  void pack_chunk() const;
  void unpack_chunk() const;

  const BroadcastCall call_;
  const std::size_t width_;
  device::ChunkLayout layout_;
};

/// From memory to memory. Equal parts that are not too many go by one call; else each rank sends
/// its own to all, chunk by chunk: a rank without memory for the result has the chunks of others
/// written into the fusion buffer.
class Allgather final : public LaneOperation {
 public:
  Allgather(Links& links, const AllgatherCall& call);

 private:
  device::Steps run();
  void gather_chunk(std::size_t done, std::size_t most) const;

  const AllgatherCall call_;
  const std::size_t width_;
  const std::size_t longest_;       ///< part
  std::vector<std::size_t> begin_;  ///< of each part
};

/// From memory to memory, chunk by chunk as an uneven allgather.
class Alltoall final : public LaneOperation {
 public:
  Alltoall(Links& links, const AlltoallCall& call);

 private:
  device::Steps run();
  void exchange_chunk(std::size_t done, std::size_t most) const;
  void keep_own_part() const;

  const AlltoallCall call_;
  const std::size_t width_;
  std::vector<std::size_t> send_begin_;     ///< of each part
  std::vector<std::size_t> receive_begin_;  ///< of each part
};

/// Of two ranks, on their own channel.
class Message final : public ChannelOperation {
 public:
  Message(Links& links, const SendCall& call);
  Message(Links& links, const RecvCall& call);

 private:
  device::Steps run();

  const Placement place_;
  const void* const input_ = nullptr;
  void* const output_ = nullptr;  ///< null: it is sent
  const std::size_t bytes_;
  const int other_;  ///< of the two
};

}  // namespace ronde::nccl
