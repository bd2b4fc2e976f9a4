/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kDeadline = 124, kNothingRun = 3 };

extern char** environ;

static int real_stderr = -1;  /* while there is a capture */
static char failure[1 << 10]; /* which case is being run, for when it fails */

static void print_failure(void) {
  if (write(STDERR_FILENO, failure, strlen(failure)) < 0) _exit(kDeadline + 1);
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
  if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0) _exit(kDeadline + 1);
  print_failure();
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

void allow_memory(size_t more_bytes) {
  FILE* const statm = fopen("/proc/self/statm", "r");
  struct rlimit limit;
  long pages = 0;
  CHECK(statm != NULL && fscanf(statm, "%ld", &pages) == 1 && fclose(statm) == 0);
  CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
  limit.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (rlim_t)more_bytes;
  CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

static void list_cases(const struct suite* suite) {
  for (const struct test_case* one = suite->cases; one->name != NULL; ++one) {
    printf("%s\t%s\t%s\t%s\n", suite->name, one->name, one->name, one->tags);
  }
}

static int runs_with_others(const struct test_case* one) {
  const char* const ranks = getenv("RONDE_TEST_RANKS");
  char tag[16];
  if (strstr(one->tags, "[own]") != NULL) return 0;
  if (ranks == NULL || strstr(one->tags, "[n") == NULL) return 1;
  snprintf(tag, sizeof(tag), "[n%s]", ranks);
  return strstr(one->tags, tag) != NULL;
}

static int child_fails(const char* program, const struct test_case* one) {
  char* const words[] = {(char*)program, (char*)one->name, NULL};
  pid_t child = -1;
  int status = -1;
  fflush(NULL);
  CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, words, environ) == 0);
  CHECK(waitpid(child, &status, 0) == child);
  return status != 0;
}

static int run_suite(const char* program, const struct suite* suite,
                     void (*run)(const struct test_case* one), enum sharing sharing) {
  const char* const command = getenv("RONDE_TEST_COMMAND"); /* launcher included */
  int status = kNothingRun;
  for (const struct test_case* one = suite->cases; one->name != NULL; ++one) {
    if (!runs_with_others(one)) continue;
    if (status == kNothingRun) status = 0;
    snprintf(failure, sizeof(failure), "FAILED %s: %s\n  alone: %s '%s'\n", suite->name, one->name,
             command == NULL ? program : command, one->name);
    if (sharing == CHILD_EACH) {
      if (!child_fails(program, one)) continue;
      print_failure();
      status = 1;
    } else {
      start_deadline();
      run(one);
    }
  }
  return status;
}

int run_suites(int argc, char** argv, const struct suite* suites, size_t count,
               void (*run)(const struct test_case* one), enum sharing sharing) {
  const char* const wanted = argc == 2 ? argv[1] : "";
  const int lists = strcmp(wanted, "--ronde-list") == 0;
  const int runs_suite = argc == 3 && strcmp(argv[1], "--ronde-run") == 0;
  for (size_t i = 0; i < count; ++i) {
    if (lists) list_cases(&suites[i]);
    if (runs_suite && strcmp(argv[2], suites[i].name) == 0) {
      return run_suite(argv[0], &suites[i], run, sharing);
    }
    for (const struct test_case* one = suites[i].cases; one->name != NULL; ++one) {
      if (strcmp(wanted, one->name) != 0) continue;
      start_deadline();
      run(one);
      return 0;
    }
  }
  if (lists) return 0;
  fprintf(stderr, "usage: %s --ronde-list | --ronde-run SUITE | CASE\n", argv[0]);
  return kNothingRun;
}
