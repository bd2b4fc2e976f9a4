// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "backends/mpi/mpi_environment.h"
#include "ronde/plugin/fabric.h"

namespace ronde::mpi {

/// Sends and receives non-blocking messages on a communicator of all ranks.
///
/// Note [No communicator per set]
/// MPI 3.1 makes communicators of some ranks by blocking calls only, which would never return if a
/// rank dies meanwhile. So there is one communicator of all ranks, which MPI duplicates without
/// blocking; the tag of a message contains the channel of its set, or of the owners of a shard.
class MpiFabric final : public Fabric {
 public:
  /// `max_count`: most bytes of one call of MPI. close() frees the communicator if `owned`.
  MpiFabric(std::shared_ptr<MpiEnvironment> environment, MPI_Comm communicator,
            std::size_t max_count, bool owned);

  std::string_view name() const noexcept override { return "mpi"; }
  FabricTraits traits() const noexcept override { return {}; }
  std::uint32_t channels() const override;
  std::unique_ptr<MessageBatch> make_batch(std::shared_ptr<void> memory) override;
  bool progress() override;
  /// MPI may write to the memory of messages in progress for as long as the process lives.
  void abort() noexcept override { mpi_->abandon(); }
  void close() override;
  StatsGroup stats() const override;

 private:
  class Batch;

  const std::shared_ptr<MpiEnvironment> mpi_;
  std::optional<MpiMembership> membership_;  ///< if it owns the communicator
  MPI_Comm communicator_;
  const std::size_t max_count_;
  std::atomic<std::uint64_t> messages_ = 0, sent_bytes_ = 0;
};

}  // namespace ronde::mpi
