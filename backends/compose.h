// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backends/gpu_reading.h"
#include "backends/launcher.h"
#include "backends/socket/key_value.h"
#include "backends/socket/start.h"
#include "backends/vendor/api_table.h"
#include "ronde/config.h"
#include "ronde/error.h"
#include "ronde/plugin/board.h"
#include "ronde/plugin/fabric_backend.h"
#include "ronde/plugin/transport.h"

namespace ronde {

struct MpiOptions;

/// The transport, the board and the backends of this build.
struct BuiltIn {
  std::function<std::unique_ptr<Transport>()> make_transport;
  /// make_transport has to be called on the thread that calls init: no other may call MPI.
  bool meets_in_init = false;
  std::function<std::optional<GroupError>()> hanging_start;  ///< as in RuntimeOptions
  MakeBoard make_board;                                      ///< for the ranks of one host
  BackendRegistry backends;
  std::shared_ptr<SharedFabric> fabric;  ///< between hosts; shared by the backends that need one
  BackendRegistry device_backends;       ///< for GPUs
  ReadGpu read_gpu;                      ///< reads the GPU that one of them uses
};

/// The ranks that start together; by default, those of the launcher. See InitOptions.
struct StartingRanks {
  std::optional<int> mpi_communicator = {};
  std::vector<int> mpi_ranks = {};
  ProgramMpi mpi = {};  ///< when init was called
  /// MPI only brings the ranks together, whatever its thread level.
  bool only_meet = false;
  /// See MpiOptions.
  std::function<void()> on_program_finalize = nullptr;
};

/// Puts the parts of this build together; no other place knows which transports and backends are
/// linked. Ranks that torchrun, Slurm or the like started meet without MPI (Note [Who started this
/// process]), unless `ranks` chooses ranks of MPI. All others meet over MPI if it was built in;
/// without it, this process is the only rank.
BuiltIn compose_built_in(const Config& config, const StartingRanks& ranks = {});

/// Puts the parts together for ranks that no launcher started, which meet through a key-value
/// store. Shared memory moves their data within a host, UCX between hosts; without UCX, they refuse
/// to start on several hosts. MPI is neither needed nor called.
BuiltIn compose_without_launcher(const Config& config, const KeyValueStart& start);

/// The ranks of a world, which an exchange brings together.
struct MetRanks {
  int rank = 0;
  int size = 1;
  net::Exchange exchange;
};

/// Puts the parts together for the ranks of a world, on the thread that starts them.
BuiltIn compose_met(const Config& config, const MetRanks& ranks);

/// The ways to move GPU data that `ronde bench setups` compares, by the names of docs/gpu.md. They
/// override what `config` says of the choice between them. `symbols`, `kernel_image`: see
/// CudaOptions.
BackendRegistry gpu_setups(const Config& config, const vendor::SymbolLookup& symbols,
                           const void* kernel_image);

/// Adds the backends for GPUs; none in a build without them (RONDE_BUILD_GPU). `mpi`: null unless
/// MPI has started the ranks.
void add_gpu_backends(const Config& config, const MpiOptions* mpi, BuiltIn& built_in);

/// Returns the version of "cuda" or "nccl"; 0 where it cannot be used.
int gpu_feature_version(std::string_view feature, const vendor::SymbolLookup& gpu_libraries);

/// The MPI of the program; empty in a build without MPI.
ProgramMpi program_mpi();

/// See ronde::feature_version(). `gpu_libraries` finds the functions of the GPU vendor's libraries.
int feature_version(std::string_view feature, const vendor::SymbolLookup& gpu_libraries);

/// A library that the built-in parts use, for `ronde info`: "MPI", "MPICH Version: 4.0.2".
struct LinkedLibrary {
  std::string name;
  std::string version;
};

/// Queries the libraries at run time, without initialising MPI.
std::vector<LinkedLibrary> linked_libraries();

}  // namespace ronde
