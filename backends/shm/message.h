// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "backends/shm/outboxes.h"
#include "ronde/kernels.h"
#include "ronde/plugin/backend.h"

namespace ronde::shm {

/// What messages share. They may outlive the backend.
struct MessageContext {
  MessageContext(std::span<std::byte> memory, std::shared_ptr<void> owner, const RingShape& shape,
                 std::size_t rank, std::function<void()> ring_peers)
      : memory_owner(std::move(owner)),
        outboxes(memory, shape, rank, std::move(ring_peers)),
        kernels(best_kernels()) {}

  const std::shared_ptr<void> memory_owner;
  Outboxes outboxes;
  const Kernels& kernels;
  /// Written by one thread at a time, read by any.
  std::atomic<std::uint64_t> messages = 0;
  std::atomic<std::uint64_t> bytes = 0;
};

/// A message in parts, each of which fills a slot; poll() goes on until it has to wait for one.
class Message : public Operation {
 public:
  bool poll() final;
  std::uint64_t progress() const final { return parts_; }

 protected:
  Message(std::shared_ptr<MessageContext> context, std::size_t bytes, int peer);

  /// Moves the next `bytes` of the message, behind the first `done`; false if that has to wait.
  virtual bool move(std::size_t done, std::size_t bytes) = 0;

  const std::shared_ptr<MessageContext> context_;
  const std::size_t peer_;

 private:
  const std::size_t bytes_;
  std::size_t done_ = 0;
  std::uint64_t parts_ = 0;
};

class Send final : public Message {
 public:
  Send(std::shared_ptr<MessageContext> context, const SendCall& call);

 private:
  bool move(std::size_t done, std::size_t bytes) override;

  const void* const input_;
};

class Recv final : public Message {
 public:
  Recv(std::shared_ptr<MessageContext> context, const RecvCall& call);

 private:
  bool move(std::size_t done, std::size_t bytes) override;

  void* const output_;
};

}  // namespace ronde::shm
