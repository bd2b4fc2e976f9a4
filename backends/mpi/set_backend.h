// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backends/mpi/mpi_environment.h"
#include "backends/mpi/set_messages.h"
#include "ronde/plugin/backend.h"

namespace ronde::mpi {

/// The collectives of a process set, made of non-blocking MPI messages: Note [No communicator a
/// set]. Making and closing it takes no call of MPI, and no other rank.
///
/// Reductions divide the elements among the ranks; each gets its part of all inputs, combines them
/// in rank order, and sends the result back to all (the direct form of Rabenseifner's
/// reduce-scatter and allgather). So every rank moves 2 (n - 1) / n of the bytes either way, and
/// results are the same bits on every rank and from run to run. Broadcasts go down a binomial tree.
///
/// Thread-safety: as Backend.
class SetBackend final : public Backend {
 public:
  SetBackend(SetChannel channel, int rank);

  std::string_view name() const noexcept override { return "mpi"; }
  Capabilities capabilities() const override;
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override;
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override;
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override;
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override;
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override;
  std::unique_ptr<Operation> send(const SendCall& call) override;
  std::unique_ptr<Operation> recv(const RecvCall& call) override;
  void abort() noexcept override { channel_->environment->abandon(); }
  void close() override {}
  StatsGroup stats() const override;

 private:
  std::unique_ptr<Operation> begin(std::size_t bytes, std::vector<SetOperation::Step> steps);

  const std::shared_ptr<const SetChannel> channel_;
  const std::size_t rank_;
  const std::size_t size_;
  std::atomic<std::uint64_t> operations_ = 0;
  std::atomic<std::uint64_t> payload_bytes_ = 0;
};

/// The segment of a packed call. Throws ronde::Error if there are several.
const Segment& only_segment(std::span<const Segment> segments);

}  // namespace ronde::mpi
