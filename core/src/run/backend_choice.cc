// SPDX-License-Identifier: Apache-2.0
#include "ronde/plugin/choice.h"

#include <utility>

#include "core/src/run/packing_backend.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// The limit of the fusion buffer, through which data goes in chunks, where fusion is off.
constexpr std::uint64_t kChunkBytes = std::uint64_t{64} << 20;

bool is_candidate(const BackendFactory& factory, const Topology& topology, bool of_set) {
  return (!factory.suits || factory.suits(topology)) && (!of_set || factory.serves_sets);
}

/// Returns the candidate that is called `wanted`, else the one of the highest priority; null if
/// there is none.
const BackendRegistry::value_type* best_of(const BackendRegistry& backends, DeviceKind device,
                                           const std::string& wanted, const Topology& topology,
                                           bool of_set) {
  const BackendRegistry::value_type* best = nullptr;
  for (const auto& candidate : backends) {
    const BackendFactory& factory = candidate.second;
    if (factory.device != device || !is_candidate(factory, topology, of_set)) continue;
    if (candidate.first == wanted) return &candidate;
    if (best == nullptr || factory.priority > best->second.priority) best = &candidate;
  }
  return best;
}

}  // namespace

const BackendRegistry::value_type& choose_set_backend(const BackendRegistry& backends,
                                                      DeviceKind device, const std::string& wanted,
                                                      const Topology& topology) {
  if (const auto* best = best_of(backends, device, wanted, topology, true)) return *best;
  throw UsageError("no backend for " + std::string(to_string(device)) +
                   " buffers can serve a process set of ranks on " +
                   std::to_string(topology.hosts()) + " host(s)");
}

const BackendRegistry::value_type& choose_backend(const BackendRegistry& backends,
                                                  DeviceKind device, const std::string& wanted,
                                                  const Topology& topology) {
  const auto* const best = best_of(backends, device, wanted, topology, false);
  if (best != nullptr && (wanted == kAnyBackend || wanted == best->first)) return *best;
  std::string names = kAnyBackend;
  for (const auto& [name, factory] : backends) {
    if (factory.device == device) names += ", " + name;
  }
  throw UsageError("no backend '" + wanted + "' for " + std::string(to_string(device)) +
                   " buffers suits these ranks; there are: " + names);
}

std::string candidates_text(const BackendRegistry& backends, DeviceKind device,
                            const Topology& topology, bool of_set) {
  std::string text;
  for (const auto& [name, factory] : backends) {
    if (factory.device != device) continue;
    text += (text.empty() ? "" : ", ") + name +
            (is_candidate(factory, topology, of_set)
                 ? " (priority " + std::to_string(factory.priority) + ")"
                 : " (does not suit)");
  }
  return text;
}

std::unique_ptr<Backend> create_backend(const BackendFactory& factory, BackendContext& context,
                                        std::uint64_t fusion_bytes) {
  context.pack = [fusion_bytes, size = context.topology->size,
                  rank = context.topology->rank](std::unique_ptr<Backend> backend) {
    const Capabilities capabilities = backend->capabilities();
    // Packing works on memory of the CPU.
    if (capabilities.device == DeviceKind::Cpu && capabilities.wants_packed) {
      const auto limit = static_cast<std::size_t>(fusion_bytes > 0 ? fusion_bytes : kChunkBytes);
      backend = std::make_unique<PackingBackend>(std::move(backend), size, rank, limit);
    }
    return backend;
  };
  return context.pack(factory.create(context));
}

}  // namespace ronde
