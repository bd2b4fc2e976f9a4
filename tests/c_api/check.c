/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <unistd.h>

int (*const kNumbers[kNumberCount])(int*) = {ronde_local_rank, ronde_local_size, ronde_cross_rank,
                                             ronde_cross_size, ronde_is_homogeneous};

char current_case[1 << 10];
static int real_stderr = -1; /* while there is a capture */

void print_current_case(void) {
  if (write(STDERR_FILENO, current_case, strlen(current_case)) < 0) _exit(1);
}

void fail_check(const char* what, const char* file, int line) {
  if (real_stderr >= 0) dup2(real_stderr, STDERR_FILENO);
  fprintf(stderr, "%s:%d: does not hold: %s\n  (last error: %s)\n", file, line, what,
          ronde_last_error());
  print_current_case();
  exit(1);
}

void begin_capture(void) {
  FILE* const file = tmpfile();
  CHECK(file != NULL);
  fflush(stderr);
  real_stderr = dup(STDERR_FILENO);
  CHECK(real_stderr >= 0);
  CHECK(dup2(fileno(file), STDERR_FILENO) == STDERR_FILENO);
  CHECK(fclose(file) == 0);
}

const char* end_capture(void) {
  static char text[1 << 14];
  fflush(stderr);
  const ssize_t length = pread(STDERR_FILENO, text, sizeof(text) - 1, 0);
  CHECK(dup2(real_stderr, STDERR_FILENO) == STDERR_FILENO);
  CHECK(close(real_stderr) == 0);
  real_stderr = -1;
  CHECK(length >= 0);
  text[length] = '\0';
  return text;
}
