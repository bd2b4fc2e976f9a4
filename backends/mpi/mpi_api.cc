// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/mpi_api.h"

#include <array>

namespace ronde::mpi {

std::string failure_text(const MpiApi& api, const char* call, int code) {
  std::array<char, MPI_MAX_ERROR_STRING + 1> native = {};
  int length = 0;
  int is_initialized = 0;  // before, Open MPI would end the process
  std::string text = std::string(call) + " failed with code " + std::to_string(code);
  if (api.initialized(&is_initialized) == MPI_SUCCESS && is_initialized != 0 &&
      api.error_string(code, native.data(), &length) == MPI_SUCCESS && length > 0) {
    text += ": " + std::string(native.data(), static_cast<std::size_t>(length));
  }
  return text;
}

}  // namespace ronde::mpi
