/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of a rank, in a process that an MPI launcher started. */
#include "rank.h"

static void run(const struct test_case* one) {
  CHECK_OK(ronde_init(NULL));
  one->body();
  CHECK_OK(ronde_shutdown());
}

int main(int argc, char** argv) {
  static const struct suite suites[] = RANK_SUITES;
  setenv("RONDE_LOG_LEVEL", "warning", 1);
  return run_suites(argc, argv, suites, sizeof(suites) / sizeof(suites[0]), run);
}
