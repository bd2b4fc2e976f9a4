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
#include "backends/socket/start.h"
#include "ronde/error.h"
#include "ronde/plugin/fabric_backend.h"
#include "ronde/plugin/transport.h"

/// The MPI transport and backend, for programs that put a Runtime together. This header includes
/// none of MPI's.
namespace ronde {

/// The ranks that make a group: all of MPI_COMM_WORLD if both are empty.
struct MpiRanks {
  /// The ranks of this communicator (a Fortran handle).
  std::optional<int> communicator = {};
  /// These ranks of MPI_COMM_WORLD, in this order.
  std::vector<int> of_world = {};

  bool are_all() const noexcept { return !communicator && of_world.empty(); }
};

/// Finds the rank that is lost while this one is in MPI_Finalize: Note [A death in MPI_Finalize].
///
/// Thread-safety: any thread may call it.
class FinalizeWatch {
 public:
  using FindLost = std::function<std::optional<GroupError>()>;

  /// The rank that was lost, if one was; nothing outside of MPI_Finalize.
  std::optional<GroupError> lost() {
    const std::lock_guard lock(mutex_);
    return find_lost_ ? find_lost_() : std::nullopt;
  }
  /// Has lost() call `find_lost`, and waits until it no longer calls an earlier one.
  void set(FindLost find_lost) {
    const std::lock_guard lock(mutex_);
    find_lost_ = std::move(find_lost);
  }

 private:
  std::mutex mutex_;
  FindLost find_lost_;
};

struct MpiOptions : NetworkOptions {
  /// Sums and products of floats are computed in rank order, never by MPI (RONDE_EXACT).
  bool exact = false;
  /// Most elements in one MPI call; tests lower it to see the chunks.
  std::size_t max_count = std::numeric_limits<int>::max();
  MpiRanks ranks = {};
  /// Shuts the group down if the program calls MPI_Finalize() before shutdown(). May be null.
  std::function<void()> on_program_finalize = nullptr;
  std::shared_ptr<FinalizeWatch> finalize_watch = std::make_shared<FinalizeWatch>();
};

/// Makes the transport: initialises MPI (or joins the program's own) and meets the other ranks on
/// the calling thread. Throws UsageError for a foreign launcher, too low a thread level, or after
/// MPI was finalised; GroupError if ranks are missing once init_timeout_s has passed.
std::function<std::unique_ptr<Transport>()> mpi_transport_factory(const MpiOptions& options);

/// The MPI that the program has initialised; empty before that, after MPI has ended, and where
/// Ronde has initialised it.
ProgramMpi mpi_of_program();

/// Connects the ranks of the program's MPI, and calls MPI no more once it has returned. Throws
/// UsageError where Ronde has initialised MPI, and on a thread that may not call MPI; GroupError as
/// above. Unlike the transport above, it heeds `options.one_host`.
std::unique_ptr<Transport> meet_over_mpi(const MpiOptions& options);

/// Makes the fabric of all ranks over the same MPI.
MakeFabric mpi_fabric_maker(const MpiOptions& options);
/// Makes the fabric of a process set over the same MPI.
MakeFabric mpi_fabric_maker_of_set(const MpiOptions& options);

/// The value of UCX_TLS that Ronde sets for the MPI of ranks on one host: Note [UCX and the death
/// of a peer].
inline constexpr const char* kMpiTransportsOfUcx = "^cma,tcp";

/// Makes the backend over the same MPI, on all ranks at the same time.
BackendFactory mpi_backend_factory(const MpiOptions& options);

/// Returns the first line of the library's version text, such as "MPICH Version: 4.0.2".
/// Initialises nothing.
std::string mpi_library_version();

}  // namespace ronde
