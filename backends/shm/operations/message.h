// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "backends/shm/slots/outboxes.h"
#include "ronde/kernels.h"
#include "ronde/plugin/backend.h"

namespace ronde::shm {

/// State that the messages of a rank share. They may outlive the backend.
struct MessageContext {
  MessageContext(std::span<std::byte> memory, std::shared_ptr<void> owner,
                 const SlotBufferShape& shape, std::size_t rank, std::function<void()> notify_peers)
      : memory_owner(std::move(owner)),
        outboxes(memory, shape, rank, std::move(notify_peers)),
        kernels(best_kernels()) {}

  const std::shared_ptr<void> memory_owner;
  Outboxes outboxes;
  const Kernels& kernels;
  /// Written by one thread at a time, read by any.
  std::atomic<std::uint64_t> messages = 0;
  std::atomic<std::uint64_t> bytes = 0;
};

/// A point-to-point message in parts, each of which fills a slot. poll() moves parts until it would
/// have to wait for a slot.
class Message final : public Operation {
 public:
  Message(std::shared_ptr<MessageContext> context, const SendCall& call);
  Message(std::shared_ptr<MessageContext> context, const RecvCall& call);

  bool poll() override;
  std::uint64_t progress() const override { return parts_; }

 private:
  Message(std::shared_ptr<MessageContext> context, const void* from, void* to, std::size_t bytes,
          int peer);

  /// Moves the next `bytes`; false if that has to wait.
  bool move(std::size_t bytes);

  const std::shared_ptr<MessageContext> context_;
  const void* const from_;  ///< null: the peer sends
  void* const to_;
  const std::size_t bytes_;
  const std::size_t peer_;
  std::size_t done_ = 0;
  std::uint64_t parts_ = 0;
};

}  // namespace ronde::shm
