// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "backends/shm/operations/message.h"
#include "backends/shm/operations/symmetric_allreduce.h"
#include "backends/shm/shm.h"
#include "backends/shm/slots/slot_operation.h"
#include "ronde/plugin/backend.h"

namespace ronde::shm {

/// Shape of the slot buffer of so many ranks on so many cores.
SlotBufferShape slot_buffer_shape(const ShmOptions& options, std::size_t ranks, std::size_t cores);

/// Operations of the ranks of one host, through a slot buffer of shared memory that stays in the
/// caches, and outboxes for messages. User memory is read and written by its own rank alone, but
/// for what lies in the symmetric heap; nothing is ever waited for in a call. Results are the same
/// bits on every rank and from run to run, whatever the options: elements are combined in rank
/// order with one rounding at the end.
///
/// Thread-safety: as Backend. One operation at a time.
class ShmBackend final : public Backend {
 public:
  /// `memory` as SlotBuffer, but memory_bytes(shape) long; kept alive by `owner` for as long as an
  /// operation lives. `symmetric`: null without a symmetric heap.
  ShmBackend(std::span<std::byte> memory, std::shared_ptr<void> owner, const SlotBufferShape& shape,
             const ShmOptions& options, std::size_t rank, std::function<void()> notify_peers,
             std::shared_ptr<SymmetricContext> symmetric = nullptr);

  static std::size_t memory_bytes(const SlotBufferShape& shape) noexcept {
    return shape.bytes() + Outboxes::bytes_for(shape);
  }

  std::string_view name() const noexcept override { return "shm"; }
  Capabilities capabilities() const override;
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override;
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override;
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override;
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override;
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override;
  std::unique_ptr<Operation> send(const SendCall& call) override;
  std::unique_ptr<Operation> recv(const RecvCall& call) override;
  std::shared_ptr<SymmetricHeap> symmetric_heap() const override;
  /// The others touch nothing of this rank's but the shared memory and the symmetric heap, which
  /// stay: see Note [Buffers after a group error].
  void abort() noexcept override {}
  void close() override {}
  StatsGroup stats() const override;

 private:
  bool by_slices(std::size_t bytes) const;

  const ShmOptions options_;
  const std::shared_ptr<SlotBufferContext> context_;
  const std::shared_ptr<MessageContext> messages_;
  const std::shared_ptr<SymmetricContext> symmetric_;
};

}  // namespace ronde::shm
