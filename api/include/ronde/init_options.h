// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "ronde/key_value_start.h"

namespace ronde {

/// Options of ronde::init(), made for designated initialisers. At most one of
/// `mpi_communicator`, `mpi_ranks` and `key_value` is given; without, all ranks of the launcher
/// make the group.
struct InitOptions {
  /// Process sets that are made at the start, as by add_process_set(): they get the numbers 1, 2,
  /// ...; those of RONDE_PROCESS_SETS follow.
  std::vector<std::vector<int>> process_sets = {};

  /// A communicator of MPI's, as the handle that MPI_Comm_c2f() gives: its ranks make the group,
  /// and each calls init. MPI was initialised by the program, and the communicator stays the
  /// program's; it may be freed once init has returned.
  std::optional<int> mpi_communicator = {};

  /// Ranks of MPI_COMM_WORLD: they make the group, in this order, and they alone call init. MPI was
  /// initialised by the program.
  std::vector<int> mpi_ranks = {};

  /// No MPI launcher: the ranks are those that meet in this store; on several hosts if there is
  /// UCX. MPI is not touched, and init may be called again after shutdown, with another prefix.
  std::optional<KeyValueStart> key_value = {};
};

}  // namespace ronde
