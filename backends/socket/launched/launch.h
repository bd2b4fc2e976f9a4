// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ronde/config.h"

namespace ronde {

/// A rank that a launcher without MPI started, as read from its variables.
struct Launch {
  int rank = 0;
  int size = 1;
  int local_rank = -1;           ///< -1: not known
  std::string job = {};          ///< equal on all ranks, such as "run 'none'"
  std::string root_host = {};    ///< name or address of rank 0's host
  std::string host_source = {};  ///< where it is from: "MASTER_ADDR"
  std::uint16_t port = 0;        ///< where rank 0 listens
  std::string port_source = {};  ///< where it is from: "MASTER_PORT + 1"
  bool one_host = false;         ///< the launcher says that all ranks are on this host
  std::string problem = {};      ///< why the variables are invalid; empty if they are valid
  std::string size_source = {};  ///< where the size is from: "WORLD_SIZE"

  bool operator==(const Launch&) const = default;
};

// Note [Who started this process]
// The first of these that applies:
// 1. torchrun, if TORCHELASTIC_RUN_ID is set and WORLD_SIZE is above 1, even if variables of an MPI
//    launcher are set: srun then started torchrun, once a node. If variables of MPI or Slurm are
//    set and WORLD_SIZE is 1, the process is alone: the other ranks are other jobs of torchrun.
// 2. An MPI launcher, if PMI_SIZE, OMPI_COMM_WORLD_SIZE, PMIX_RANK, MPIRUN_RANK or
//    MV2_COMM_WORLD_RANK is a number; also with one rank, as `mpiexec -n 1` within a job makes the
//    process alone.
// 3. A tool that imitates torchrun (the Kubeflow Training Operator, a script), if WORLD_SIZE is
// above
//    1 and RANK or MASTER_ADDR is set; but Slurm if RANK is not set and all of Slurm's variables
//    are. In a step, RANK=0 with WORLD_SIZE=1 makes the process alone.
// 4. Slurm, if SLURM_NTASKS is above 1 and the process belongs to a step (SLURM_STEP_ID), unlike a
//    batch script by itself. With I_MPI_PMI_LIBRARY, MPI asks Slurm for its ranks.
// 5. No launcher: the process is alone, unless foreign_launcher() (backends/launcher.h) objects.

/// Reads the launch from `variables`; nothing if an MPI launcher, or no launcher, started several
/// ranks. A launch of one rank is alone, whatever other launchers set. `port`: RONDE_PORT, or 0.
/// `has_mpi`: MPI may start the ranks instead.
std::optional<Launch> find_launch(const EnvironmentLookup& variables, std::uint64_t port,
                                  bool has_mpi = true);

/// Returns the first host of a list in Slurm's notation: "node01" of "node[01-04,7],other[1-2]".
std::string first_host(std::string_view list);

}  // namespace ronde
