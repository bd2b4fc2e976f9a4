// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/src/algorithms/peer_messages.h"
#include "core/src/base/counter.h"
#include "ronde/plugin/fabric_backend.h"

namespace ronde {

/// Collectives of a process set by algorithms over a fabric.
///
/// Thread-safety: as Backend.
class FabricBackend final : public Backend {
 public:
  /// `between_hosts`: messages take long enough to leave the core to others meanwhile.
  FabricBackend(FabricChannel channel, const FabricBackendOptions& options, bool between_hosts,
                bool owns_fabric);

  std::string_view name() const noexcept override { return options_.name; }
  Capabilities capabilities() const override;
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override;
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override;
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override;
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override;
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override;
  std::unique_ptr<Operation> send(const SendCall& call) override;
  std::unique_ptr<Operation> recv(const RecvCall& call) override;
  std::optional<std::chrono::nanoseconds> tend() override;
  int prepare_sleep() override;
  void abort() noexcept override { channel_->fabric->abort(); }
  void close() override;
  StatsGroup stats() const override;

 private:
  class AlgorithmOperation;

  /// Starts an operation and posts its first messages. Called in the order of operations.
  template <typename MakeSteps>
  std::unique_ptr<Operation> start(std::uint64_t bytes, std::uint32_t stream,
                                   const MakeSteps& make_steps);
  std::uint32_t next_stream() noexcept;
  Algorithm choose(Collective collective, std::uint64_t bytes);
  Algorithm choose_reduction(Collective collective, std::uint64_t bytes, DataType dtype,
                             ReduceOp op);

  const std::shared_ptr<const FabricChannel> channel_;  ///< operations may outlive the backend
  const FabricBackendOptions options_;
  const bool between_hosts_;
  const bool owns_fabric_;
  std::uint64_t started_ = 0;  ///< collectives
  /// Whether the last operation of each stream has ended.
  std::array<std::shared_ptr<const bool>, Fabric::kStreams> ended_;
  std::uint64_t tended_operations_ = 0;
  std::chrono::nanoseconds pause_{0};  ///< until the next tend()
  Counter operations_, payload_bytes_;
  std::array<std::array<Counter, kAlgorithmCount>, kCollectiveCount> used_;
};

}  // namespace ronde
