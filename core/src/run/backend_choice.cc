// SPDX-License-Identifier: Apache-2.0
#include "ronde/plugin/choice.h"

#include <utility>

#include "core/src/run/packing_backend.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// The limit of the fusion buffer, through which data goes in chunks, where fusion is off.
constexpr std::uint64_t kChunkBytes = std::uint64_t{64} << 20;

bool suits(const BackendFactory& factory, const Topology& topology) {
  return !factory.suits || factory.suits(topology);
}

}  // namespace

const BackendRegistry::value_type& choose_set_backend(const BackendRegistry& backends,
                                                      DeviceKind device, const std::string& wanted,
                                                      const Topology& topology) {
  const BackendRegistry::value_type* chosen = nullptr;
  for (const auto& candidate : backends) {
    const BackendFactory& factory = candidate.second;
    if (factory.device != device || !factory.serves_sets || !suits(factory, topology)) continue;
    if (candidate.first == wanted) return candidate;
    if (chosen == nullptr || factory.priority > chosen->second.priority) chosen = &candidate;
  }
  if (chosen != nullptr) return *chosen;
  throw UsageError("no backend for " + std::string(to_string(device)) +
                   " buffers can serve a process set of ranks on " +
                   std::to_string(topology.hosts()) + " host(s)");
}

const BackendRegistry::value_type& choose_backend(const BackendRegistry& backends,
                                                  DeviceKind device, const std::string& wanted,
                                                  const Topology& topology) {
  const BackendRegistry::value_type* chosen = nullptr;
  std::string names;
  for (const auto& candidate : backends) {
    const BackendFactory& factory = candidate.second;
    if (factory.device != device) continue;
    names += (names.empty() ? "" : ", ") + candidate.first;
    if (!suits(factory, topology)) continue;
    if (wanted == candidate.first) return candidate;
    const bool better = chosen == nullptr || factory.priority > chosen->second.priority;
    if (wanted == "auto" && better) chosen = &candidate;
  }
  if (chosen == nullptr) {
    throw UsageError("no backend '" + wanted + "' for " + std::string(to_string(device)) +
                     " buffers suits these ranks; there are: auto" +
                     (names.empty() ? "" : ", " + names));
  }
  return *chosen;
}

std::string candidates_text(const BackendRegistry& backends, DeviceKind device,
                            const Topology& topology, bool of_set) {
  std::string text;
  for (const auto& [name, factory] : backends) {
    if (factory.device != device) continue;
    const bool is_candidate = suits(factory, topology) && (!of_set || factory.serves_sets);
    text += (text.empty() ? "" : ", ") + name +
            (is_candidate ? " (priority " + std::to_string(factory.priority) + ")"
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
