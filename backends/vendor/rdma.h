// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <system_error>

namespace ronde::vendor {

/// Whether the system lists a device in `folder` that reads and writes memory without a core. False
/// also where that is not known.
inline bool has_rdma_devices(const std::filesystem::path& folder = "/sys/class/infiniband") {
  std::error_code error;
  const std::filesystem::directory_iterator entries(folder, error);
  return !error && entries != std::filesystem::directory_iterator();
}

}  // namespace ronde::vendor
