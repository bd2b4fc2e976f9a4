// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "backends/mpi/mpi.h"
#include "ronde/plugin/factory.h"

/// The backend of ranks on several hosts, for those who put a Runtime together.
namespace ronde {

/// Must be equal on all ranks.
struct HierarchicalOptions {
  MpiOptions mpi;
  /// A rank's part of its host's slot buffer: slots, and bytes in each (a multiple of 64; 0: by the
  /// numbers of hosts and ranks). With more slots the network has work while a rank is not running.
  std::size_t slots = 8;
  std::size_t slot_bytes = 0;
};

/// Makes the backend, on all ranks at the same time, over the same MPI as the transport. Its name
/// is "hierarchical".
BackendFactory hierarchical_backend_factory(const HierarchicalOptions& options);

}  // namespace ronde
