// SPDX-License-Identifier: Apache-2.0
#include "backends/ucx/ucp_api.h"

namespace ronde::ucx {

LoadedUcx load_ucx(const vendor::SymbolLookup& lookup) {
  LoadedUcx ucx;
  // The version comes first: it explains more than the functions that an old library lacks.
  struct : vendor::ApiTable {
    UcpApi::Call<decltype(ucp_get_version)> get_version{*this, "ucp_get_version"};
  } version_api;
  if (const std::string missing = version_api.load(lookup, kLibrary); !missing.empty()) {
    ucx.problem = "UCX cannot be loaded: " + missing +
                  ". Install it (Debian: libucx0), or have LD_LIBRARY_PATH name its folder";
    return ucx;
  }
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  version_api.get_version(&major, &minor, &release);
  ucx.version = std::to_string(major) + "." + std::to_string(minor) + "." +  //
                std::to_string(release);
  if (major != 1 || minor < kOldestMinor) {
    ucx.problem = std::string(kLibrary) + " is UCX " + ucx.version + ", Ronde needs 1." +
                  std::to_string(kOldestMinor) + " or a newer version 1. Install one";
    return ucx;
  }
  const auto api = std::make_shared<UcpApi>();
  const std::string missing = api->load(lookup, kLibrary);
  if (missing.empty()) {
    ucx.api = api;
  } else {
    ucx.problem = "UCX " + ucx.version + " cannot be used: " + missing;
  }
  return ucx;
}

}  // namespace ronde::ucx
