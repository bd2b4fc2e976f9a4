// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/nccl_api.h"

namespace ronde::nccl {
namespace {

std::string failure_text(const NcclApi& api, const char* symbol, Result result,
                         Communicator communicator) {
  const char* const text = api.error_string(result);
  std::string all = std::string(symbol) + ": " + (text != nullptr ? text : "unknown error") + " (" +
                    std::to_string(result) + ")";
  const char* const last = communicator != nullptr ? api.last_error(communicator) : nullptr;
  if (last != nullptr && *last != '\0') all += ": " + std::string(last);
  return all;
}

}  // namespace

NcclError::NcclError(const NcclApi& api, const char* symbol, Result result,
                     Communicator communicator, const std::string& doing)
    : Error("NCCL failed while " + doing + ": " + failure_text(api, symbol, result, communicator)) {
}

std::string version_text(int version) {
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int minor = version < 10000 ? version % 1000 / 100 : version % 10000 / 100;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

LoadedNccl load_nccl(const vendor::SymbolLookup& lookup, const std::string& library) {
  LoadedNccl nccl;
  const auto api = std::make_shared<NcclApi>();
  nccl.problem = api->load(lookup, library.c_str());
  nccl.was_found = static_cast<bool>(api->get_version);
  if (!nccl.was_found) return nccl;
  // The version explains more than the functions that an old library lacks.
  if (const Result result = api->get_version(&nccl.version); result != kSuccess) {
    nccl.problem = "ncclGetVersion: error " + std::to_string(result);
  } else if (nccl.version < kOldest) {
    nccl.problem = library + " is NCCL " + version_text(nccl.version) + ", Ronde needs " +
                   version_text(kOldest) + " or newer. Install a newer one";
  } else if (nccl.problem.empty()) {
    nccl.api = api;
  }
  return nccl;
}

}  // namespace ronde::nccl
