// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "backends/shm/operations/exchanges.h"
#include "backends/shm/operations/message.h"
#include "backends/shm/operations/symmetric_allreduce.h"
#include "backends/shm/shm.h"
#include "backends/shm/slots/slot_operation.h"
#include "ronde/plugin/backend.h"

namespace ronde::shm {

/// Returns the shape of the slot buffer of `ranks` on `cores`.
SlotBufferShape slot_buffer_shape(const ShmOptions& options, std::size_t ranks, std::size_t cores);

/// Runs operations of the ranks of one host through a slot buffer of shared memory that stays in
/// the caches, and messages through outboxes. Each rank alone reads and writes its user's memory,
/// except in the symmetric heap. No call blocks. Results are the same bits on every rank and from
/// run to run, whatever the options: elements are combined in rank order with one rounding at the
/// end.
///
/// Thread-safety: as Backend. One operation at a time.
class ShmBackend final : public Backend {
 public:
  /// `memory`: as for SlotBuffer, but memory_bytes(shape) long; operations keep it alive through
  /// `owner`. `symmetric`: null without a symmetric heap.
  ShmBackend(std::span<std::byte> memory, std::shared_ptr<void> owner, const SlotBufferShape& shape,
             const ShmOptions& options, std::size_t rank, std::function<void()> notify_peers,
             std::shared_ptr<SymmetricContext> symmetric = nullptr);

  static std::size_t memory_bytes(const SlotBufferShape& shape) noexcept {
    return shape.bytes() + Outboxes::bytes_for(shape);
  }

  std::string_view name() const noexcept override { return "shm"; }
  Capabilities capabilities() const override;
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override;
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override {
    return std::make_unique<Broadcast>(context_, call);
  }
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override {
    return std::make_unique<Allgather>(context_, call);
  }
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override {
    return std::make_unique<Alltoall>(context_, call);
  }
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override {
    return std::make_unique<Reducescatter>(context_, call);
  }
  std::unique_ptr<Operation> send(const SendCall& call) override;
  std::unique_ptr<Operation> recv(const RecvCall& call) override;
  std::shared_ptr<SymmetricHeap> symmetric_heap() const override;
  /// Does nothing: other ranks access only the shared memory and the symmetric heap of this rank,
  /// which stay. See Note [Buffers after a group error].
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
