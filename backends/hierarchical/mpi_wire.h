// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "backends/hierarchical/wire.h"
#include "backends/mpi/mpi_environment.h"

namespace ronde::hierarchical {

/// A wire of non-blocking MPI messages.
///
/// Note [No communicator a shard]
/// MPI 3.1 splits communicators by blocking calls only, which a rank that dies meanwhile would hold
/// for ever. A duplicate of the world is made without blocking, and messages need no more than
/// that.
class MpiWire final : public Wire {
 public:
  /// `peers`: the rank in `communicator` to talk to, by host.
  MpiWire(std::shared_ptr<mpi::MpiEnvironment> environment, MPI_Comm communicator,
          std::vector<int> peers, std::size_t batches)
      : mpi_(std::move(environment)),
        communicator_(communicator),
        peers_(std::move(peers)),
        batches_(batches) {}

  void send(std::size_t batch, std::size_t host, Kind kind, const std::byte* from,
            std::size_t bytes) override;
  void receive(std::size_t batch, std::size_t host, Kind kind, std::byte* to,
               std::size_t bytes) override;
  bool done(std::size_t batch) override;
  void keep_for_ever(std::shared_ptr<void> memory) override {
    mpi::keep_for_ever(std::move(memory));
  }

 private:
  const std::shared_ptr<mpi::MpiEnvironment> mpi_;
  const MPI_Comm communicator_;
  const std::vector<int> peers_;
  std::vector<std::vector<MPI_Request>> batches_;
};

}  // namespace ronde::hierarchical
