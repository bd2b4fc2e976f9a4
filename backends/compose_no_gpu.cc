// SPDX-License-Identifier: Apache-2.0
// Compiled in builds without the backends for GPUs.
#include "backends/compose.h"

namespace ronde {

void add_gpu_backends(const Config&, const MpiOptions*, BuiltIn&) {}

int gpu_feature_version(std::string_view, const vendor::SymbolLookup&) {
  return 0;
}

}  // namespace ronde
