// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "backends/vendor/api_table.h"

namespace ronde::cuda {

/// The GPUs whose memory a rank may map (RONDE_VISIBLE_DEVICES): a policy of Ronde's own, beside
/// CUDA_VISIBLE_DEVICES, which says what the framework may compute on. A GPU is told by its UUID,
/// which its owner knows, so that it may well be hidden from this process.
class VisibleDevices {
 public:
  /// All of them.
  VisibleDevices() = default;
  /// `entries`: UUIDs ("GPU-..."), beginnings of some, and ordinals in the order of PCI addresses,
  /// of all GPUs of the machine: NVML knows the UUIDs of those. Throws UsageError if an ordinal is
  /// of no GPU, or NVML is not there to ask.
  VisibleDevices(const std::vector<std::string>& entries, const vendor::SymbolLookup& symbols);

  bool allows(const std::string& uuid) const;

 private:
  bool all_ = true;
  std::vector<std::string> beginnings_;
};

}  // namespace ronde::cuda
