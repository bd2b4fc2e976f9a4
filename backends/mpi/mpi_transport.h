// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "backends/mpi/mpi.h"
#include "backends/mpi/mpi_environment.h"
#include "backends/socket/socket_tree.h"
#include "core/src/agree/messages.h"

namespace ronde::mpi {

/// Exchanges blobs of all ranks over a communicator of its own.
class MpiExchange {
 public:
  MpiExchange(std::shared_ptr<MpiEnvironment> environment, const MpiOptions& options,
              MpiUse use = MpiUse::Always);

  /// net::Exchange. Throws UsageError on every rank if they use MPI in different ways.
  std::vector<std::string> exchange(std::string_view blob);

  /// Connects the ranks, and frees the communicator: Note [MPI that Ronde may only start with].
  std::unique_ptr<Transport> meet();

 protected:
  std::vector<std::string> gather(const std::string& blob);
  void wait_for_exchange(MPI_Request& request, std::shared_ptr<void> buffers);

  const Clock::time_point deadline_;  ///< from before MPI_Init, which may wait for long
  const MpiUse use_;
  MpiMembership mpi_;
  MPI_Comm communicator_;
  const NetworkOptions network_;
};

/// The control plane of ranks that an MPI launcher started. MPI only numbers the ranks and carries
/// their addresses. Messages use sockets, because a wait in MPI spins, and because MPI does not
/// report that a peer died.
class MpiTransport final : private MpiExchange, public net::SocketTree {
 public:
  MpiTransport(std::shared_ptr<MpiEnvironment> environment, const MpiOptions& options);

  void close(bool graceful, Clock::time_point deadline) override;

 private:
  bool exchange_before_finalize(Clock::time_point deadline);
  void leave_mpi();
  std::optional<GroupError> lost_in_finalize();
  std::optional<FailureMessage> forward_failure(const Incoming& incoming);
  void send_to_neighbours(int all_but, std::string_view message);

  const std::shared_ptr<FinalizeWatch> watch_;
  const bool shuts_down_in_finalize_;
  std::set<int> finalized_;  ///< neighbours
};

}  // namespace ronde::mpi
