// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "backends/vendor/api_table.h"

namespace ronde::cuda {

/// The GPUs whose memory a rank may map (RONDE_VISIBLE_DEVICES), beside CUDA_VISIBLE_DEVICES, which
/// selects those that the framework computes on. GPUs are identified by UUIDs, which their owners
/// know, so they may be hidden from this process.
class VisibleDevices {
 public:
  /// Allows all GPUs.
  VisibleDevices() = default;
  /// `entries`: UUIDs ("GPU-..."), beginnings of UUIDs, and ordinals of the machine's GPUs in the
  /// order of PCI addresses, whose UUIDs NVML knows. Throws UsageError if there is no such GPU, or
  /// no NVML.
  VisibleDevices(const std::vector<std::string>& entries, const vendor::SymbolLookup& symbols);

  bool allows(const std::string& uuid) const;

 private:
  bool all_ = true;
  std::vector<std::string> beginnings_;
};

}  // namespace ronde::cuda
