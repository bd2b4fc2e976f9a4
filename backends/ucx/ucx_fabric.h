// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/ucx/ucx.h"
#include "backends/ucx/ucx_worker.h"

namespace ronde::ucx {

/// How the 64 bits of a tag of UCX are used, from the highest: the job tells apart the messages of
/// ranks that share an address by chance, such as a late one of a job that has ended.
constexpr int kJobBits = 16;
constexpr int kChannelBits = 24;
constexpr int kStreamBits = 5;
constexpr int kRankBits = 19;  ///< the source
static_assert(kJobBits + kChannelBits + kStreamBits + kRankBits == 64);
static_assert(Fabric::kStreams == 1U << kStreamBits);

/// Messages by UCX: TCP, RoCE and InfiniBand, whatever UCX finds and the user allows it.
///
/// UCX ends a send when it has its bytes, and leaves the rest of what a full socket did not take to
/// later polls. Its sockets carry no key of the job: whoever reaches them can send to them.
///
/// Each rank has one worker. Connections are made by the first message to or from a peer, so that
/// UCX watches over it while a message is due from it.
class UcxFabric final : public Fabric {
 public:
  /// `worker` knows the addresses of all ranks. `job`: a random number that they share.
  UcxFabric(std::shared_ptr<UcxWorker> worker, std::uint16_t job, const UcxOptions& options);
  /// Without close(), everything stays for ever.
  ~UcxFabric() override;

  std::string_view name() const noexcept override { return "ucx"; }
  FabricTraits traits() const noexcept override { return traits_; }
  std::uint32_t channels() const override { return 1U << kChannelBits; }
  std::unique_ptr<MessageBatch> make_batch(std::shared_ptr<void> memory) override;
  std::shared_ptr<void> register_memory(void* begin, std::size_t bytes) override;
  bool progress() override { return !closed_ && worker_->progress(); }
  int descriptor() const noexcept override { return descriptor_; }
  bool prepare_sleep() override;
  void abort() noexcept override {}
  void close() override;
  StatsGroup stats() const override;

 private:
  const std::shared_ptr<UcxWorker> worker_;
  const std::uint16_t job_;
  const std::chrono::milliseconds close_bound_;
  const FabricTraits traits_;
  int descriptor_ = -1;
  bool closed_ = false;
};

}  // namespace ronde::ucx
