// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ronde/config.h"

namespace ronde {

/// One of several ranks that a launcher without MPI started, as its variables say.
struct Launch {
  int rank = 0;
  int size = 1;
  int local_rank = -1;           ///< -1: not known
  std::string job = {};          ///< "run 'none'": the same on all ranks
  std::string root_host = {};    ///< name or address at which the others reach rank 0
  std::string host_source = {};  ///< what gave it: "MASTER_ADDR"
  std::uint16_t port = 0;        ///< at which rank 0 awaits the others
  std::string port_source = {};  ///< what gave it: "MASTER_PORT + 1"
  bool one_host = false;         ///< all ranks are on this host, says the launcher
  std::string problem = {};      ///< why the variables make no sense; empty if they do
  std::string size_source = {};  ///< what gave the size: "WORLD_SIZE"
};

// Note [Who started this process]
// In this order:
// 1. torchrun, if TORCHELASTIC_RUN_ID is set and WORLD_SIZE is above 1, also where an MPI launcher
//    speaks as well: srun then started torchrun, once a node. Where MPI or Slurm speaks as well,
//    WORLD_SIZE=1 means to be alone: their other ranks are other jobs of torchrun.
// 2. An MPI launcher, if PMI_SIZE, OMPI_COMM_WORLD_SIZE, PMIX_RANK, MPIRUN_RANK or
//    MV2_COMM_WORLD_RANK is a number: of one rank, too, as `mpiexec -n 1` within a job means to be
//    alone.
// 3. What imitates torchrun (the Kubeflow Training Operator, a script), if WORLD_SIZE is above 1
//    and RANK or MASTER_ADDR is set; but Slurm if RANK is not set, and Slurm says all there is to
//    know. In a step, RANK=0 with WORLD_SIZE=1 means to be alone.
// 4. Slurm, if SLURM_NTASKS is above 1 and the process belongs to a step (SLURM_STEP_ID), which a
//    batch script by itself does not. With I_MPI_PMI_LIBRARY, MPI asks Slurm itself who it is.
// 5. Nobody: the process is alone, and foreign_launcher() (backends/launcher.h) has its say.

/// Reads them; nothing if no such launcher started several ranks, or an MPI launcher did. A launch
/// of one rank is alone, whatever others say. `port`: RONDE_PORT, or 0. `has_mpi`: there is an MPI
/// to leave the start to. Changes nothing and asks nobody.
std::optional<Launch> find_launch(const EnvironmentLookup& variables, std::uint64_t port,
                                  bool has_mpi = true);

/// "node01" of "node[01-04,7],other[1-2]": the first host of a list in Slurm's writing.
std::string first_host(std::string_view list);

}  // namespace ronde
