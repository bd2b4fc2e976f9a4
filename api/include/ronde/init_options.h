// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "ronde/key_value_start.h"

namespace ronde {

/// Options of ronde::init(), made for designated initialisers. At most one of
/// `mpi_communicator`, `mpi_ranks` and `key_value` is given; without, all ranks of the launcher
/// make the group.
///
/// An MPI that the program has initialised with MPI_THREAD_MULTIPLE is called by Ronde until
/// shutdown(). Below that level (MPI_Init(), say), init calls it on its own thread, for the ranks
/// to meet, and Ronde never does again: data moves through shared memory, and between hosts by UCX.
/// Throws UsageError where only another thread may call MPI, and on every rank if there are several
/// hosts but no UCX, or if RONDE_CPU_BACKEND=mpi or, between hosts, RONDE_FABRIC=mpi. Other threads
/// do not call MPI meanwhile.
struct InitOptions {
  /// Process sets that are made at the start, as by add_process_set(): they get the numbers 1, 2,
  /// ... in the first start of a process, and others later; those of RONDE_PROCESS_SETS follow.
  std::vector<std::vector<int>> process_sets = {};

  /// A communicator of MPI's, as the handle that MPI_Comm_c2f() gives: its ranks make the group,
  /// and each calls init. MPI was initialised by the program, and the communicator stays the
  /// program's; it may be freed once init has returned.
  std::optional<int> mpi_communicator = {};

  /// Ranks of MPI_COMM_WORLD: they make the group, in this order, and they alone call init. MPI was
  /// initialised by the program; below MPI_THREAD_MULTIPLE, its MPI_Comm_create_group() waits for
  /// a rank that does not come without a limit.
  std::vector<int> mpi_ranks = {};

  /// No MPI launcher: the ranks are those that meet in this store; on several hosts if there is
  /// UCX. MPI is not touched, and init may be called again after shutdown, with another prefix.
  std::optional<KeyValueStart> key_value = {};

  /// The longest time-out that the program gives its operations: RONDE_STALL_ABORT_S, where it is
  /// not set, is at least a minute longer. Equal on all ranks. Runtime::expect_timeout() raises it.
  std::chrono::nanoseconds longest_timeout{0};
};

}  // namespace ronde
