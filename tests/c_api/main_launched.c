/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of a rank, in a process that an MPI launcher started. The program holds MPI, so that a
 * group can follow another one. */
#include <mpi.h>

#include "rank.h"

static void run(const struct test_case* one) {
  int is_started = 0;
  int provided = MPI_THREAD_SINGLE;
  MPI_Initialized(&is_started);
  if (!is_started) {
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    CHECK(provided == MPI_THREAD_MULTIPLE);
  }
  CHECK_OK(ronde_init(NULL));
  one->body();
  CHECK_OK(ronde_shutdown());
}

int main(int argc, char** argv) {
  static const struct suite suites[] = RANK_SUITES;
  setenv("RONDE_LOG_LEVEL", "warning", 1);
  const int status =
      run_suites(argc, argv, suites, sizeof(suites) / sizeof(suites[0]), run, ONE_PROCESS);
  int is_started = 0;
  MPI_Initialized(&is_started);
  if (is_started) MPI_Finalize();
  return status;
}
