// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ronde/config.h"
#include "ronde/plugin/fabric_backend.h"
#include "ronde/plugin/transport.h"

/// The MPI transport and backend, for programs that put a Runtime together. This header includes
/// none of MPI's.
namespace ronde {

/// The ranks that make a group: all of MPI_COMM_WORLD where neither is given.
struct MpiRanks {
  /// The ranks of this communicator (a Fortran handle).
  std::optional<int> communicator = {};
  /// These ranks of MPI_COMM_WORLD, in this order.
  std::vector<int> of_world = {};

  bool are_all() const noexcept { return !communicator && of_world.empty(); }
};

struct MpiOptions {
  /// How long to wait for the other ranks, in seconds (RONDE_INIT_TIMEOUT_S).
  double init_timeout_s = 120.0;
  /// Sums and products of floats are computed in rank order, never by MPI (RONDE_EXACT).
  bool exact = false;
  /// Most elements in one MPI call; tests lower it to see the chunks.
  std::size_t max_count = std::numeric_limits<int>::max();
  /// An identity other than this host's (RONDE_HOST_ID). Ranks of different ones use TCP.
  std::string host = {};
  /// TCP may use 127.0.0.1, which another machine could not.
  bool offer_loopback = false;
  std::string job_key = {};  ///< RONDE_JOB_KEY
  PortRange ports = {};      ///< RONDE_PORT_RANGE
  MpiRanks ranks = {};
};

/// Makes the transport: initialises MPI (or joins the program's own) and meets the other ranks on
/// the thread that calls it. Throws UsageError for a foreign launcher, too low a thread level, or
/// after MPI was finalised; GroupError if ranks are missing once init_timeout_s has passed.
std::function<std::unique_ptr<Transport>()> mpi_transport_factory(const MpiOptions& options);

/// Make the fabric over the same MPI: for all ranks, or for a process set.
/// @{
MakeFabric mpi_fabric_maker(const MpiOptions& options);
MakeFabric mpi_fabric_maker_of_set(const MpiOptions& options);
/// @}

/// The value of UCX_TLS that Ronde sets for the MPI of ranks on one host: Note [UCX and the death
/// of a peer].
inline constexpr const char* kMpiTransportsOfUcx = "^cma,tcp";

/// Makes the backend, on all ranks at the same time, over the same MPI.
BackendFactory mpi_backend_factory(const MpiOptions& options);

/// "MPICH Version: 4.0.2": the first line of what the library says. Initialises nothing.
std::string mpi_library_version();

}  // namespace ronde
