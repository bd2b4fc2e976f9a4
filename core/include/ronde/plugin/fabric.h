// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "ronde/stats.h"

namespace ronde {

/// Tells apart the messages between two ranks. Those of one tag from one rank to another arrive in
/// the order in which they were sent; those of different tags may overtake each other.
struct MessageTag {
  std::uint32_t channel = 0;  ///< below Fabric::channels()
  std::uint32_t stream = 0;   ///< of the channel; below Fabric::kStreams

  /// The same in both.
  bool operator==(const MessageTag&) const = default;
};

/// Messages that end together.
///
/// Posting never waits. Both ranks of a message give the same number of bytes: one of another size
/// is an error. The memory of a message must stay, and must not be written (of a received one: not
/// be read either), until poll() has returned true.
///
/// What has ended at its sender may still be with the sender's part of the network: see
/// Fabric::progress().
///
/// A batch with messages in progress may be destroyed, but only after Fabric::abort() or after one
/// of the fabric has thrown. What these messages may still touch is the memory that was given to
/// make_batch(): it stays until they cannot touch it any more, be that for ever.
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

  /// Advances the network; true once all messages posted so far have ended, and the batch is empty
  /// again. Throws GroupError that names the peer if one is lost, or sent a message of another
  /// size; ronde::Error if the network fails. The group is then dead.
  virtual bool poll() = 0;

  /// How many messages have ended so far: grows whenever poll() got on.
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
  /// What the network can do.
  virtual FabricTraits traits() const noexcept = 0;
  /// How many channels there are, at least 3: 0 is that of all ranks, the last one that of the
  /// ranks which own the same shard of their hosts' data, and the others those of process sets.
  virtual std::uint32_t channels() const = 0;

  /// An empty batch. `memory`: what its messages may touch, if anything but memory that is never
  /// freed. The batch must not outlive the fabric.
  virtual std::unique_ptr<MessageBatch> make_batch(std::shared_ptr<void> memory) = 0;

  /// Tells the network of memory that many messages will use, as long as what it returns lives.
  /// Null where that changes nothing.
  virtual std::shared_ptr<void> register_memory(void* begin, std::size_t bytes) {
    static_cast<void>(begin);
    static_cast<void>(bytes);
    return nullptr;
  }

  /// Advances what the network has taken over from batches that have ended, such as bytes that a
  /// full socket did not take: a rank calls it from time to time while it has no message in
  /// progress, or its peers may wait for ever. True if that got on, false also where it is not
  /// known.
  virtual bool progress() = 0;

  /// A descriptor that becomes readable when a poll() may get on, after prepare_sleep() has
  /// returned true; -1 if there is none. prepare_sleep() returns false where there is something to
  /// poll already.
  /// @{
  virtual int descriptor() const noexcept { return -1; }
  virtual bool prepare_sleep() { return false; }
  /// @}

  /// The group is dead: messages in progress will not end, and none is posted any more. Must not
  /// wait for a peer. Their memory may be touched until the process ends, or as the batch says.
  virtual void abort() noexcept = 0;

  /// Ends a healthy fabric; every rank calls it, once all messages have ended on all ranks. May
  /// wait for peers that call it, too, for a few seconds at most.
  virtual void close() = 0;

  /// The counters so far, "messages" and "sent_bytes" among them. Any thread may call it.
  virtual StatsGroup stats() const = 0;
};

}  // namespace ronde
