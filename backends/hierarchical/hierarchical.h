// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ronde/plugin/fabric_backend.h"

/// The backend of ranks on several hosts, for programs that put a Runtime together.
namespace ronde {

/// Makes the backend, on all ranks at the same time. Its name is "hierarchical".
/// `options` must be equal on all ranks.
BackendFactory hierarchical_backend_factory(std::shared_ptr<SharedFabric> fabric,
                                            const FabricBackendOptions& options);

}  // namespace ronde
