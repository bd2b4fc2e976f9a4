/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface, started without a launcher as a group of one rank. */
#include <ronde/ronde_c.h>
#include <stdio.h>

int main(void) {
  float value = 3;
  ronde_work work = NULL;
  ronde_init_options options = {0};
  options.struct_size = sizeof(options);
  options.size = 1;
  if (ronde_init(&options) != RONDE_OK ||
      ronde_allreduce("value", &value, &value, 1, RONDE_F32, RONDE_SUM, 1, 2, RONDE_CPU, NULL,
                      RONDE_ALL_RANKS, &work) != RONDE_OK ||
      ronde_work_wait(work, -1) != RONDE_OK || ronde_work_free(work) != RONDE_OK ||
      ronde_shutdown() != RONDE_OK) {
    fprintf(stderr, "%s\n", ronde_last_error());
    return 1;
  }
  printf("ronde %s: %g\n", ronde_version(), value);
  return value == 6 ? 0 : 1;
}
