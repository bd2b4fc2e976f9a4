// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backends/launcher.h"
#include "ronde/config.h"
#include "ronde/error.h"
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

/// Note [A death in MPI_Finalize]. Any thread may use it.
class FinalizeWatch {
 public:
  using Look = std::function<std::optional<GroupError>()>;

  /// The rank that was lost while this one is in MPI_Finalize, if one was.
  std::optional<GroupError> lost() {
    const std::lock_guard lock(mutex_);
    return look_ ? look_() : std::nullopt;
  }
  /// From here on lost() calls `look`; it is in no call of an earlier one any more.
  void use(Look look) {
    const std::lock_guard lock(mutex_);
    look_ = std::move(look);
  }

 private:
  std::mutex mutex_;
  Look look_;
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
  /// Shuts the group down where the program calls MPI_Finalize() before it has. May be null.
  std::function<void()> on_program_finalize = nullptr;
  std::shared_ptr<FinalizeWatch> finalize_watch = std::make_shared<FinalizeWatch>();
};

/// Makes the transport: initialises MPI (or joins the program's own) and meets the other ranks on
/// the thread that calls it. Throws UsageError for a foreign launcher, too low a thread level, or
/// after MPI was finalised; GroupError if ranks are missing once init_timeout_s has passed.
std::function<std::unique_ptr<Transport>()> mpi_transport_factory(const MpiOptions& options);

/// Nothing where MPI is not initialised, or Ronde initialised it, or it has ended.
ProgramMpi mpi_of_program();

/// Meets ranks of the program's MPI on the thread that calls it, which is one that may call MPI
/// (else UsageError), and calls MPI no more once it has returned. `one_host`:
/// throws UsageError on every rank if they are on several, and where Ronde has initialised MPI.
/// GroupError as above.
std::unique_ptr<Transport> meet_over_mpi(const MpiOptions& options, bool one_host);

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
