// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/src/base/steps.h"
#include "ronde/kernels.h"
#include "ronde/plugin/fabric.h"

namespace ronde {

/// Memory that operations reuse, so that the system need not map it anew for each of them.
///
/// Thread-safety: any thread.
class ScratchPool : public std::enable_shared_from_this<ScratchPool> {
 public:
  using Memory = std::shared_ptr<std::byte>;

  ScratchPool();

  /// Returns at least `bytes`, aligned to a cache line and not cleared.
  Memory take(std::size_t bytes);

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };
  struct Block {
    std::size_t bytes = 0;
    std::unique_ptr<std::byte, Free> memory;
  };

  Block find(std::size_t bytes);
  void give_back(Block block) noexcept;

  std::mutex mutex_;
  std::vector<Block> blocks_;  ///< guarded by mutex_
};

/// The ranks between which an algorithm sends messages, over a channel of a fabric.
struct FabricChannel {
  std::shared_ptr<Fabric> fabric;
  std::vector<int> peers;    ///< ranks in the group, by rank in the channel
  std::size_t rank = 0;      ///< the own one in the channel
  std::uint32_t number = 0;  ///< MessageTag::channel
  std::shared_ptr<ScratchPool> scratch = std::make_shared<ScratchPool>();
  /// In a simulation: called with the bytes that would be combined. No memory is then accessed.
  std::function<void(std::size_t bytes)> simulate_reduction = {};
};

/// Messages of one operation that end together.
///
/// Thread-safety: as Operation.
class PeerMessages {
 public:
  /// `stream`: MessageTag::stream. `memory`: owns memory that messages access, beside scratch().
  PeerMessages(std::shared_ptr<const FabricChannel> channel, std::uint32_t stream,
               std::shared_ptr<void> memory = nullptr);
  /// Other messages of the same operation, which end apart; the order of posting counts for both.
  explicit PeerMessages(const PeerMessages& other);
  PeerMessages& operator=(const PeerMessages&) = delete;

  /// This rank, and the number of ranks.
  /// @{
  std::size_t rank() const noexcept { return channel_->rank; }
  std::size_t size() const noexcept { return channel_->peers.size(); }
  /// @}

  /// As in MessageBatch; `peer` is a rank of the channel.
  /// @{
  void send(std::size_t peer, const std::byte* from, std::size_t bytes) {
    batch_->send(channel_->peers[peer], tag_, from, bytes);
  }
  void receive(std::size_t peer, std::byte* to, std::size_t bytes) {
    batch_->receive(channel_->peers[peer], tag_, to, bytes);
  }
  bool poll() { return batch_->poll(); }
  std::uint64_t progress() const noexcept { return batch_->ended(); }
  /// @}

  /// `co_await messages.ended()` waits until all posted messages have ended.
  UntilPolled<PeerMessages> ended() { return UntilPolled<PeerMessages>(*this); }

  /// Returns memory that lives as long as the operation, and as its messages may access it.
  std::byte* scratch(std::size_t bytes);

  // Work on the data of messages, which a simulation leaves out.

  bool moves_data() const noexcept { return !channel_->simulate_reduction; }
  /// Writes the reduction of `inputs`, each of `bytes`, to `output`, which may be one of them.
  void reduce(std::byte* output, std::span<const void* const> inputs, std::size_t bytes,
              const Reduction& reduction) const;
  /// As reduce(), of two inputs.
  void combine(std::byte* output, const std::byte* first, const std::byte* second,
               std::size_t bytes, const Reduction& reduction) const {
    reduce(output, std::array<const void*, 2>{first, second}, bytes, reduction);
  }
  /// Copies `bytes` from one memory to another, which may be the same.
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const;

 private:
  struct Scratch {
    std::shared_ptr<void> memory;
    std::vector<ScratchPool::Memory> blocks;
  };

  const std::shared_ptr<const FabricChannel> channel_;
  const MessageTag tag_;
  const std::shared_ptr<Scratch> scratch_;
  const std::unique_ptr<MessageBatch> batch_;
};

}  // namespace ronde
