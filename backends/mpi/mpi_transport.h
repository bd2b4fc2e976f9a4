// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/mpi/mpi.h"
#include "backends/mpi/mpi_environment.h"
#include "backends/socket/tree_transport.h"

namespace ronde::mpi {

struct MpiTransportOptions {
  std::chrono::milliseconds init_timeout{120'000};
  /// See net::TreeOptions.
  std::string host = {};
  bool offer_loopback = false;
  MpiRanks ranks = {};
};

/// The control plane of ranks that an MPI launcher started. MPI only brings them together: it says
/// who they are and carries the addresses. Messages travel over sockets, because a wait in MPI
/// spins, and because MPI does not tell that a peer died.
class MpiTransport final : public net::TreeTransport {
 public:
  MpiTransport(std::shared_ptr<MpiEnvironment> environment, const MpiTransportOptions& options);

  void close(bool graceful, Clock::time_point deadline) override;

 private:
  std::vector<std::string> exchange(std::string_view blob);
  void wait_for_exchange(MPI_Request& request, std::shared_ptr<void> buffers);

  const Clock::time_point deadline_;  ///< from before MPI_Init, which may wait for long
  MpiMembership mpi_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
};

}  // namespace ronde::mpi
