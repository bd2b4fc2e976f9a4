// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "backends/mpi/mpi_environment.h"
#include "ronde/plugin/backend.h"

// Note [Own operators]
// The results of MPI_MIN and MPI_MAX for NaN and signed zeros depend on the order of operands,
// which differs between ranks. MPICH 4.0.2 compares unsigned integers as signed ones. MPI_SUM of
// Open MPI 4.1.4 saturates integers of 8 and 16 bits on processors with AVX, instead of wrapping
// around.
// For these types Ronde registers its own kernels as operators.

namespace ronde::mpi {

/// An operator that replaces one of MPI.
struct OwnOperator {
  DataType dtype;
  ReduceOp op;
  MPI_User_function* function;
};

inline constexpr std::size_t kOwnOperatorCount = 16;
const std::array<OwnOperator, kOwnOperatorCount>& own_operators();

struct MpiBackendOptions {
  /// The other ranks must have joined the communicator by then.
  Clock::time_point deadline = Clock::time_point::max();
  /// Most elements in one MPI call; MPI counts in int.
  std::size_t max_count = INT_MAX;
  /// The ranks are on several hosts, so data moves while this rank does not poll.
  bool between_hosts = false;
  /// MpiOptions::exact.
  bool exact = false;
};

/// Moves and reduces host memory by non-blocking MPI calls on a communicator of its own, one
/// contiguous buffer at a time (Ronde packs). Operations start at once and are advanced by poll().
///
/// Results are the same bits on every rank if the MPI library combines operands in one order for
/// all ranks (as MPICH and Open MPI do) or by commuted pairs; min and max do not depend on the
/// order. MPI chooses the order by the size of a buffer and the position of an element in it. With
/// `exact`, sums and products of floats are reduced in rank order instead, by messages between
/// pairs.
///
/// Thread-safety: as Backend.
class MpiBackend final : public Backend {
 public:
  MpiBackend(std::shared_ptr<MpiEnvironment> environment, const MpiBackendOptions& options);

  std::string_view name() const noexcept override { return "mpi"; }
  Capabilities capabilities() const override;
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override;
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override;
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override;
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override;
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override;
  std::unique_ptr<Operation> send(const SendCall& call) override;
  std::unique_ptr<Operation> recv(const RecvCall& call) override;
  std::optional<std::chrono::nanoseconds> tend() override;
  void abort() noexcept override;
  void close() override;
  StatsGroup stats() const override;

  struct Counters {
    std::atomic<std::uint64_t> operations = 0;
    std::atomic<std::uint64_t> collective_calls = 0;
    std::atomic<std::uint64_t> polls = 0;
    std::atomic<std::uint64_t> payload_bytes = 0;
  };

 private:
  class PendingCalls;

  std::unique_ptr<PendingCalls> begin(std::size_t bytes);
  bool reduces_in_order(DataType dtype, ReduceOp op) const;
  MPI_Op operator_for(DataType dtype, ReduceOp op) const;
  void check_counts(std::span<const std::size_t> counts) const;

  MpiMembership mpi_;
  const std::size_t max_count_;
  const bool between_hosts_;
  const bool exact_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  /// Runs exact reductions, and collectives with too many elements for the counts of MPI.
  std::unique_ptr<Backend> by_messages_;
  std::array<MPI_Op, kOwnOperatorCount> own_ops_ = {};  ///< in the order of own_operators()
  /// Shared with operations, which may outlive the backend after an abort.
  std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();
};

}  // namespace ronde::mpi
