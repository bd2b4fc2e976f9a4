// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "ronde/stats.h"

namespace ronde {

/// Distinguishes messages between two ranks. Messages of one tag from one rank to another arrive in
/// the order in which they were sent; those of different tags may overtake each other.
struct MessageTag {
  std::uint32_t channel = 0;  ///< below Fabric::channels()
  std::uint32_t stream = 0;   ///< of the channel; below Fabric::kStreams

  /// Equal in both fields.
  bool operator==(const MessageTag&) const = default;
};

/// Messages that end together.
///
/// Posting never waits. Both ranks of a message give the same number of bytes: one of another size
/// is an error. The memory of a message must stay, and must not be written (of a received one: not
/// be read either), until poll() has returned true.
///
/// A message that has ended at its sender may not have left the sender's part of the network: see
/// Fabric::progress().
///
/// A batch with messages in progress may be destroyed, but only after Fabric::abort() or after one
/// of the fabric has thrown. These messages may still access the memory that was given to
/// make_batch(), which stays until they cannot, if necessary for ever.
///
/// Thread-safety: as Fabric.
class MessageBatch {
 public:
  virtual ~MessageBatch() = default;
  MessageBatch() = default;
  MessageBatch(const MessageBatch&) = delete;
  MessageBatch& operator=(const MessageBatch&) = delete;

  /// Posts a message to or from `peer`, another rank of the group, of `bytes` at an address of this
  /// process. 0 bytes: nothing is posted, and nothing arrives. Throws GroupError that names the
  /// peer if it is known to be lost, ronde::Error if the network fails.
  /// @{
  void send(int peer, MessageTag tag, const void* from, std::size_t bytes) {
    if (bytes > 0) post_send(peer, tag, from, bytes);
  }
  void receive(int peer, MessageTag tag, void* to, std::size_t bytes) {
    if (bytes > 0) post_receive(peer, tag, to, bytes);
  }
  /// @}

  /// Advances the network. Returns true once all messages posted so far have ended, and the batch
  /// is empty again. Throws GroupError that names the peer if one is lost, or sent a message of
  /// another size; ronde::Error if the network fails. The group is then dead.
  virtual bool poll() = 0;

  /// Returns the number of messages that have ended so far: grows whenever poll() made progress.
  virtual std::uint64_t ended() const noexcept = 0;

 private:
  virtual void post_send(int peer, MessageTag tag, const void* from, std::size_t bytes) = 0;
  virtual void post_receive(int peer, MessageTag tag, void* to, std::size_t bytes) = 0;
};

/// The abilities of a fabric.
struct FabricTraits {
  bool rdma = false;           ///< the network reads and writes memory without a core
  bool device_memory = false;  ///< addresses of GPUs may be sent from and received in
};

/// Messages between the ranks of a group: all that an algorithm between hosts needs of a network.
/// Ranks are numbered as in the group.
///
/// Thread-safety: one thread at a time, with everything of one call visible to the next; not always
/// the same thread. Any thread may call stats().
class Fabric {
 public:
  /// Streams of a channel.
  static constexpr std::uint32_t kStreams = 32;

  virtual ~Fabric() = default;
  Fabric() = default;
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  /// The name for texts and RONDE_FABRIC.
  virtual std::string_view name() const noexcept = 0;
  /// Returns the abilities of the network.
  virtual FabricTraits traits() const noexcept = 0;
  /// Returns the number of channels, at least 3: 0 is that of all ranks, the last one that of the
  /// ranks which own the same shard of their hosts' data, and the others those of process sets.
  virtual std::uint32_t channels() const = 0;

  /// Returns an empty batch. `memory`: owns the memory of its messages, unless that is never freed.
  /// The batch must not outlive the fabric.
  virtual std::unique_ptr<MessageBatch> make_batch(std::shared_ptr<void> memory) = 0;

  /// Registers memory that many messages will use, until the result is destroyed. Returns null
  /// where registration has no effect.
  virtual std::shared_ptr<void> register_memory(void* begin, std::size_t bytes) {
    static_cast<void>(begin);
    static_cast<void>(bytes);
    return nullptr;
  }

  /// Advances data of batches that have ended, such as bytes that a full socket did not accept: a
  /// rank calls it from time to time while it has no message in progress, or its peers may wait for
  /// ever. Returns whether there was progress, false also where that is not known.
  virtual bool progress() = 0;

  /// Returns a descriptor that becomes readable when a poll() may make progress, after
  /// prepare_sleep() has returned true; -1 if there is none. prepare_sleep() returns false where a
  /// poll() may make progress already.
  /// @{
  virtual int descriptor() const noexcept { return -1; }
  virtual bool prepare_sleep() { return false; }
  /// @}

  /// The group is dead: messages in progress will not end, and none is posted any more. Must not
  /// wait for a peer. Their memory may be accessed until the process ends: see MessageBatch,
  /// keep().
  virtual void abort() noexcept = 0;
  /// As Backend::keep(), of memory that make_batch() was not given.
  virtual bool keep(const std::shared_ptr<void>& memory) {
    static_cast<void>(memory);
    return false;
  }

  /// Ends a healthy fabric; every rank calls it, once all messages have ended on all ranks. May
  /// wait for peers that call it, too, for a few seconds at most.
  virtual void close() = 0;

  /// Returns the counters so far, "messages" and "sent_bytes" among them. Any thread may call it.
  virtual StatsGroup stats() const = 0;
};

}  // namespace ronde
