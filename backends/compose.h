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
#include "backends/socket/rendezvous.h"
#include "backends/vendor/api_table.h"
#include "ronde/config.h"
#include "ronde/error.h"
#include "ronde/plugin/board.h"
#include "ronde/plugin/fabric_backend.h"
#include "ronde/plugin/transport.h"

namespace ronde {

/// What this build of Ronde brings.
struct BuiltIn {
  std::function<std::unique_ptr<Transport>()> make_transport;
  /// make_transport has to be called on the thread that calls init, which alone may call MPI.
  bool meets_in_init = false;
  std::function<std::optional<GroupError>()> hanging_start;  ///< as in RuntimeOptions
  MakeBoard make_board;                                      ///< of ranks of one host
  BackendRegistry backends;
  std::shared_ptr<SharedFabric> fabric;  ///< between hosts, of those of them that need one
  BackendRegistry device_backends;       ///< of GPUs
  ReadGpu read_gpu;                      ///< of the GPU that one of them uses
};

/// The ranks that start together: of the launcher's where nothing is said. See InitOptions.
struct StartingRanks {
  std::optional<int> mpi_communicator = {};
  std::vector<int> mpi_ranks = {};
  ProgramMpi mpi = {};  ///< when init was called
  /// MPI brings the ranks together, and does no more whatever its thread level.
  bool only_meet = false;
  /// As in MpiOptions.
  std::function<void()> on_program_finalize = nullptr;
};

/// The one place that knows which transports and backends are linked. Ranks that torchrun, Slurm or
/// the like started meet without MPI (Note [Who started this process]), unless `ranks` chooses some
/// of MPI; else it is MPI where it was built in, or one rank, this process.
BuiltIn compose_built_in(const Config& config, const StartingRanks& ranks = {});

/// The same for ranks that no launcher started, which meet through a store of keys and values.
/// Shared memory moves their data within a host, UCX between hosts: without it, they refuse to
/// start on several. Needs no MPI, and touches none.
BuiltIn compose_without_launcher(const Config& config, const KeyValueStart& start);

/// Ranks that a world brings together.
struct MetRanks {
  int rank = 0;
  int size = 1;
  net::Exchange exchange;  ///< of blobs among them
};

/// Puts the parts together for ranks that meet by an exchange, on the thread that starts them.
BuiltIn compose_met(const Config& config, const MetRanks& ranks);

/// The ways to move what is on GPUs that are measured against each other (`ronde bench setups`), by
/// the names of docs/gpu.md. Of `config` all else counts. `symbols`, `kernel_image`: as in
/// CudaOptions.
BackendRegistry gpu_setups(const Config& config, const vendor::SymbolLookup& symbols,
                           const void* kernel_image);

/// Nothing in a build without MPI.
ProgramMpi program_mpi();

/// See ronde::feature_version(). `gpu_libraries` finds those of the vendor.
int feature_version(std::string_view feature, const vendor::SymbolLookup& gpu_libraries);

/// A library that the built-in parts rest on, for `ronde info`: "MPI", "MPICH Version: 4.0.2".
struct LinkedLibrary {
  std::string name;
  std::string version;
};

/// Asks the libraries themselves, at run time. Starts nothing: MPI is not initialised by it.
std::vector<LinkedLibrary> linked_libraries();

}  // namespace ronde
