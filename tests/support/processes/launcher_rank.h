// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace ronde::test {

/// What the launcher, MPICH's or Open MPI's, says before MPI is initialised.
inline int said_by_launcher(const char* of_mpich, const char* of_open_mpi) {
  const char* text = std::getenv(of_mpich);
  if (text == nullptr) text = std::getenv(of_open_mpi);
  if (text == nullptr) {
    throw std::runtime_error("neither " + std::string(of_mpich) + " nor " + of_open_mpi +
                             " is set: start this by mpiexec");
  }
  return std::stoi(text);
}

inline int launched_rank() {
  return said_by_launcher("PMI_RANK", "OMPI_COMM_WORLD_RANK");
}

inline int launched_size() {
  return said_by_launcher("PMI_SIZE", "OMPI_COMM_WORLD_SIZE");
}

}  // namespace ronde::test
