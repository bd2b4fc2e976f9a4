/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

int (*const kNumbers[kNumberCount])(int*) = {ronde_local_rank, ronde_local_size, ronde_cross_rank,
                                             ronde_cross_size, ronde_is_homogeneous};

static int real_stderr = -1;  /* while there is a capture */
static char failure[1 << 10]; /* names the case that is run */

static void print_failure(void) {
  if (write(STDERR_FILENO, failure, strlen(failure)) < 0) _exit(1);
}

void fail_check(const char* what, const char* file, int line) {
  if (real_stderr >= 0) dup2(real_stderr, STDERR_FILENO);
  fprintf(stderr, "%s:%d: does not hold: %s\n  (last error: %s)\n", file, line, what,
          ronde_last_error());
  print_failure();
  exit(1);
}

static void on_deadline(int signal_number) {
  static const char text[] = "the deadline of the test case has passed\n";
  (void)signal_number;
  if (write(STDERR_FILENO, text, sizeof(text) - 1) > 0) print_failure();
  _exit(124);
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

void allow_memory(size_t more_bytes) {
  FILE* const statm = fopen("/proc/self/statm", "r");
  struct rlimit limit;
  long pages = 0;
  CHECK(statm != NULL && fscanf(statm, "%ld", &pages) == 1 && fclose(statm) == 0);
  CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
  limit.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (rlim_t)more_bytes;
  CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

int run_suites(int argc, char** argv, const struct suite* suites, size_t count,
               void (*run)(const struct test_case* one)) {
  const char* const wanted = argc > 1 ? argv[argc - 1] : "";
  const int lists = strcmp(wanted, "--ronde-list") == 0;
  const char* const deadline = getenv("RONDE_TEST_DEADLINE_S");
  int runs = 0;
  for (size_t i = 0; i < count; ++i) {
    const char* const suite = suites[i].name;
    for (const struct test_case* one = suites[i].cases; one->name != NULL; ++one) {
      if (lists) printf("%s\t%s\t%s\t\n", suite, one->name, one->name);
      if (strcmp(wanted, argc == 3 ? suite : one->name) != 0) continue;
      snprintf(failure, sizeof(failure), "FAILED %s: %s\n  alone: %s %s\n", suite, one->name,
               argv[0], one->name);
      signal(SIGALRM, on_deadline);
      alarm(deadline == NULL ? 60 : (unsigned)strtoul(deadline, NULL, 10));
      run(one);
      ++runs;
    }
  }
  if (lists || runs > 0) return 0;
  fprintf(stderr, "usage: %s --ronde-list | --ronde-run SUITE | CASE\n", argv[0]);
  return 3;
}
