// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "ronde/plugin/fabric_backend.h"

/// The backend of ranks on several hosts, for those who put a Runtime together.
namespace ronde {

/// Must be equal on all ranks.
struct HierarchicalOptions {
  AlgorithmTable algorithms = AlgorithmTable();
  bool exact = false;  ///< as in FabricBackendOptions
  /// A rank's part of its host's slot buffer: slots, and bytes in each (a multiple of 64; 0: by the
  /// numbers of hosts and ranks). With more slots the network has work while a rank is not running.
  std::size_t slots = 8;
  std::size_t slot_bytes = 0;
  /// A round is divided among so few ranks that messages have at least so many bytes, if it has.
  std::size_t least_message = std::size_t{64} << 10;
};

/// Makes the backend, on all ranks at the same time. Its name is "hierarchical".
BackendFactory hierarchical_backend_factory(std::shared_ptr<SharedFabric> fabric,
                                            const HierarchicalOptions& options);

}  // namespace ronde
