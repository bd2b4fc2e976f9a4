/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface, started without a launcher as a group of one rank. */
#include <ronde/ronde_c.h>
#include <stdio.h>

int main(void) {
  float value = 3;
  ronde_tensor tensor = RONDE_TENSOR_INIT; /* a scalar in host memory */
  ronde_operation_options twice = RONDE_OPERATION_OPTIONS_INIT;
  ronde_work work = NULL;
  ronde_init_options options = {0};
  options.struct_size = sizeof(options);
  options.size = 1;
  tensor.data = &value;
  tensor.dtype = RONDE_F32;
  twice.name = "value";
  twice.postscale = 2;
  if (ronde_init(&options) != RONDE_OK ||
      ronde_allreduce(&tensor, &tensor, &twice, &work) != RONDE_OK ||
      ronde_work_wait(work, -1) != RONDE_OK || ronde_work_free(work) != RONDE_OK ||
      ronde_shutdown() != RONDE_OK) {
    fprintf(stderr, "%s\n", ronde_last_error());
    return 1;
  }
  printf("ronde %s: %g\n", ronde_version(), value);
  return value == 6 ? 0 : 1;
}
