// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "backends/ucx/ucx.h"
#include "backends/ucx/ucx_worker.h"

namespace ronde::ucx {

/// The fields of a 64-bit tag of UCX, from the highest. The job separates messages of ranks that
/// share an address by chance, such as a late message of a job that has ended.
constexpr int kJobBits = 16;
constexpr int kChannelBits = 24;
constexpr int kStreamBits = 5;
constexpr int kRankBits = 19;  ///< of the source
static_assert(kJobBits + kChannelBits + kStreamBits + kRankBits == 64);
static_assert(Fabric::kStreams == 1U << kStreamBits);

/// Sends and receives messages by UCX, over TCP, RoCE or InfiniBand: whatever UCX finds and the
/// user allows.
///
/// UCX completes a send when it has copied the bytes, and later polls write what a full socket did
/// not accept. Its sockets do not check the key of the job: any process that reaches them can send
/// to them.
///
/// Each rank has one worker. The first message to or from a peer makes the connection, so that UCX
/// reports the loss of a peer from which a message is due.
class UcxFabric final : public Fabric {
 public:
  /// `worker` has the addresses of all ranks. `job`: a random number that they share.
  UcxFabric(std::shared_ptr<UcxWorker> worker, std::uint16_t job);
  /// Without close(), all resources stay until the process makes another fabric.
  ~UcxFabric() override;

  std::string_view name() const noexcept override { return "ucx"; }
  FabricTraits traits() const noexcept override { return traits_; }
  std::uint32_t channels() const override { return 1U << kChannelBits; }
  std::unique_ptr<MessageBatch> make_batch(std::shared_ptr<void> memory) override;
  std::shared_ptr<void> register_memory(void* begin, std::size_t bytes) override;
  bool progress() override { return !closed_ && worker_->progress(); }
  int descriptor() const noexcept override { return descriptor_; }
  bool prepare_sleep() override;
  void abort() noexcept override { worker_->abort(); }
  bool keep(const std::shared_ptr<void>& memory) override {
    worker_->keep(memory);
    return true;
  }
  void close() override;
  StatsGroup stats() const override;

 private:
  const std::shared_ptr<UcxWorker> worker_;
  const std::uint16_t job_;
  const FabricTraits traits_;
  int descriptor_ = -1;
  bool closed_ = false;
};

}  // namespace ronde::ucx
