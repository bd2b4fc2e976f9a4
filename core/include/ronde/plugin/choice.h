// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ronde/plugin/factory.h"

namespace ronde {

/// The name that selects the best backend.
inline constexpr const char* kAnyBackend = "auto";

/// Returns the backend called `wanted`, or for "auto" the one of the highest priority, among those
/// that serve `device` and suit these ranks. Throws UsageError with the names of all if there is
/// none.
const BackendRegistry::value_type& choose_backend(const BackendRegistry& backends,
                                                  DeviceKind device, const std::string& wanted,
                                                  const Topology& topology);

/// Returns a backend for a process set of ranks with this topology, among those that serve sets;
/// one of the highest priority if `wanted` does not.
const BackendRegistry::value_type& choose_set_backend(const BackendRegistry& backends,
                                                      DeviceKind device, const std::string& wanted,
                                                      const Topology& topology);

/// Returns the candidates: "mpi (priority 10), shm (priority 20), hierarchical (does not suit)".
std::string candidates_text(const BackendRegistry& backends, DeviceKind device,
                            const Topology& topology, bool of_set);

/// Makes the backend, on all ranks at the same time, and puts the packing around one that wants it.
/// `fusion_bytes`: RONDE_FUSION_BYTES; 0 turns fusion off.
std::unique_ptr<Backend> create_backend(const BackendFactory& factory, BackendContext& context,
                                        std::uint64_t fusion_bytes);

}  // namespace ronde
