/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <signal.h>
#include <unistd.h>

enum { kDeadline = 124, kNothingRun = 3 };

static int real_stderr = -1; /* while there is a capture */

void fail_check(const char* what, const char* file, int line) {
  if (real_stderr >= 0) dup2(real_stderr, STDERR_FILENO);
  fprintf(stderr, "%s:%d: does not hold: %s\n  (last error: %s)\n", file, line, what,
          ronde_last_error());
  exit(1);
}

static void on_deadline(int signal_number) {
  static const char text[] = "the deadline of the test case has passed\n";
  (void)signal_number;
  if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0) _exit(kDeadline + 1);
  _exit(kDeadline);
}

static void start_deadline(void) {
  const char* const text = getenv("RONDE_TEST_DEADLINE_S");
  const long seconds = text == NULL ? 60 : strtol(text, NULL, 10);
  CHECK(seconds > 0);
  signal(SIGALRM, on_deadline);
  alarm((unsigned)seconds);
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

static void list_cases(const struct suite* suite) {
  for (const struct test_case* one = suite->cases; one->name != NULL; ++one) {
    printf("%s\t%s\t%s\t%s\n", suite->name, one->name, one->name, one->tags);
  }
}

int run_suites(int argc, char** argv, const struct suite* suites, size_t count,
               void (*run)(const struct test_case* one)) {
  const char* const wanted = argc == 2 ? argv[1] : "";
  const int lists = strcmp(wanted, "--ronde-list") == 0;
  for (size_t i = 0; i < count; ++i) {
    if (lists) list_cases(&suites[i]);
    for (const struct test_case* one = suites[i].cases; one->name != NULL; ++one) {
      if (strcmp(wanted, one->name) != 0) continue;
      start_deadline();
      run(one);
      return 0;
    }
  }
  if (lists) return 0;
  fprintf(stderr, "usage: %s --ronde-list | CASE\n", argv[0]);
  return kNothingRun;
}
