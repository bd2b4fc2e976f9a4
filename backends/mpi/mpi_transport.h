// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/mpi/mpi_environment.h"
#include "backends/socket/socket_tree.h"
#include "ronde/transport.h"

namespace ronde::mpi {

struct MpiTransportOptions {
  std::chrono::milliseconds init_timeout{120'000};
  /// See net::TreeOptions.
  std::string host = {};
  bool offer_loopback = false;
};

/// The control plane of ranks that an MPI launcher started. MPI only brings them together: it says
/// who they are and carries the addresses. Messages travel over sockets, because a wait in MPI
/// spins, and because MPI does not tell that a peer died.
class MpiTransport final : public Transport {
 public:
  MpiTransport(std::shared_ptr<MpiEnvironment> environment, const MpiTransportOptions& options);

  std::string_view name() const noexcept override { return "mpi"; }
  const Topology& topology() const noexcept override { return tree_->topology(); }
  void send(int peer, std::string_view message) override { tree_->send(peer, message); }
  Incoming poll() override { return tree_->poll(); }
  bool wait(Clock::time_point deadline) override { return tree_->wait(deadline); }
  void wake() noexcept override { tree_->wake(); }
  int wake_fd() const noexcept override { return tree_->wake_fd(); }
  void close(bool graceful, Clock::time_point deadline) override;
  StatsGroup stats() const override { return tree_->stats("mpi transport"); }

 private:
  std::vector<std::string> exchange(std::string_view blob, Clock::time_point deadline);
  void wait_for_exchange(MPI_Request& request, std::shared_ptr<void> buffers,
                         Clock::time_point deadline);

  MpiMembership mpi_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  std::optional<net::SocketTree> tree_;
};

}  // namespace ronde::mpi
