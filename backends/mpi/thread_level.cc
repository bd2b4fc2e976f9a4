// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/thread_level.h"

#include "ronde/error.h"

namespace ronde::mpi {
namespace {

void check(const MpiApi& api, const char* name, int code) {
  if (code != MPI_SUCCESS) throw Error(failure_text(api, name, code));
}

int level_of_program(const MpiApi& api) {
  int provided = MPI_THREAD_SINGLE;
  check(api, "MPI_Query_thread", api.query_thread(&provided));
  return provided;
}

}  // namespace

std::string level_name(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
    case MPI_THREAD_MULTIPLE:
      return "MPI_THREAD_MULTIPLE";
    default:
      return "thread level " + std::to_string(level);
  }
}

void check_level_of_program(const MpiApi& api, MpiUse use) {
  const int level = level_of_program(api);
  if (level >= MPI_THREAD_MULTIPLE) return;
  const std::string begin = "this program initialised MPI with " + level_name(level) + ", ";
  if (use == MpiUse::Always) {
    throw UsageError(begin +
                     "but Ronde calls MPI from a thread of its own here. Initialise it by "
                     "MPI_Init_thread(..., MPI_THREAD_MULTIPLE, ...).");
  }
  if (level >= MPI_THREAD_SERIALIZED) return;
  int is_main = 0;
  check(api, "MPI_Is_thread_main", api.is_thread_main(&is_main));
  if (is_main != 0) return;
  throw UsageError(begin +
                   "which allows calls of MPI on the thread that initialised it alone: call "
                   "ronde::init() on that thread, or initialise MPI by MPI_Init_thread(..., "
                   "MPI_THREAD_MULTIPLE, ...).");
}

ProgramMpi mpi_of_program(const MpiApi& api) {
  int is_initialized = 0;
  int is_finalized = 0;
  check(api, "MPI_Initialized", api.initialized(&is_initialized));
  check(api, "MPI_Finalized", api.finalized(&is_finalized));
  if (is_initialized == 0 || is_finalized != 0) return {};
  const int level = level_of_program(api);
  return {.is_there = true, .low_level = level < MPI_THREAD_MULTIPLE ? level_name(level) : ""};
}

}  // namespace ronde::mpi
