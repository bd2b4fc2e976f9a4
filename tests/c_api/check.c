/* SPDX-License-Identifier: Apache-2.0 */
/* Runs cases on ranks that are forked and meet through files. Each becomes a fresh process by exec,
 * as ThreadSanitizer does not like threads in the child of a fork. Takes the arguments of the
 * Catch2 programs: `--ronde-list` lists the cases for ctest, `--ronde-run SUITE` runs those of a
 * suite, a name runs that case. The first failure ends it. Each case may take
 * RONDE_TEST_DEADLINE_S. */
#include "check.h"

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

int (*const kNumbers[kNumberCount])(int*) = {ronde_local_rank, ronde_local_size, ronde_cross_rank,
                                             ronde_cross_size, ronde_is_homogeneous};

static char current_case[1 << 10]; /* what is printed of it */
static int real_stderr = -1;       /* while there is a capture */

static void print_current_case(void) {
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

static struct test_case* cases;
static struct test_case** end_of_cases = &cases;

void add_case(struct test_case* one) {
  *end_of_cases = one;
  end_of_cases = &one->next;
}

static void set_number(const char* name, int number) {
  char text[16];
  snprintf(text, sizeof(text), "%d", number);
  CHECK(setenv(name, text, 1) == 0);
}

/* `size` is 0 for a process alone. */
static void become_rank(const struct test_case* one, const char* folder, int rank, int size) {
  set_number("TEST_RANK", rank);
  set_number("TEST_SIZE", size);
  CHECK(setenv("TEST_STORE", folder, 1) == 0);
  CHECK(setenv("RONDE_LOG_LEVEL", size > 0 ? "warning" : "off", 1) == 0);
  if (size > 0) set_number("PMI_SIZE", 7); /* as under a foreign launcher: it must not matter */
  execl("/proc/self/exe", "rank", one->name, (char*)NULL);
  fail_check("exec", __FILE__, __LINE__);
}

static void run_ranks(const struct test_case* one, int size) {
  pid_t ranks[3];
  char folder[] = "/tmp/ronde_c_api_XXXXXX";
  const int count = size > 0 ? size : 1;
  int failed = 0;
  CHECK(mkdtemp(folder) != NULL);
  for (int rank = 0; rank < count; ++rank) {
    ranks[rank] = fork();
    CHECK(ranks[rank] >= 0);
    if (ranks[rank] == 0) become_rank(one, folder, rank, size);
  }
  for (int rank = 0; rank < count; ++rank) {
    int status = 0;
    CHECK(waitpid(ranks[rank], &status, 0) == ranks[rank]);
    if (status == 0) continue;
    fprintf(stderr, "rank %d of %d ended with status %d\n", rank, count, status);
    failed = 1;
  }
  DIR* const directory = opendir(folder);
  CHECK(directory != NULL);
  for (struct dirent* entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
    if (entry->d_name[0] != '.') CHECK(unlinkat(dirfd(directory), entry->d_name, 0) == 0);
  }
  CHECK(closedir(directory) == 0 && rmdir(folder) == 0 && !failed);
}

static void run(const struct test_case* one) {
  char* const folder = getenv("TEST_STORE");
  if (folder == NULL && one->least_ranks >= 0) {
    for (int size = one->least_ranks; size <= (one->least_ranks > 0 ? 3 : 0); ++size) {
      run_ranks(one, size);
    }
  } else if (one->least_ranks <= 0) {
    one->body();
  } else {
    const ronde_init_options options =
        store_options(folder, atoi(getenv("TEST_RANK")), atoi(getenv("TEST_SIZE")));
    CHECK_OK(ronde_init(&options));
    one->body();
    CHECK_OK(ronde_shutdown());
  }
}

static void on_deadline(int signal_number) {
  static const char text[] = "the deadline of the test case has passed\n";
  (void)signal_number;
  if (write(STDERR_FILENO, text, sizeof(text) - 1) > 0) print_current_case();
  _exit(124);
}

int main(int argc, char** argv) {
  const char* const wanted = argc > 1 ? argv[argc - 1] : "";
  const int lists = strcmp(wanted, "--ronde-list") == 0;
  const char* const deadline = getenv("RONDE_TEST_DEADLINE_S");
  int runs = 0;
  for (const struct test_case* one = cases; one != NULL; one = one->next) {
    if (lists) printf("%s\t%s\t%s\t\n", one->suite, one->name, one->name);
    if (strcmp(wanted, argc == 3 ? one->suite : one->name) != 0) continue;
    snprintf(current_case, sizeof(current_case), "FAILED %s: %s\n  alone: %s %s\n", one->suite,
             one->name, argv[0], one->name);
    signal(SIGALRM, on_deadline);
    alarm(deadline == NULL ? 60 : (unsigned)strtoul(deadline, NULL, 10));
    run(one);
    ++runs;
  }
  if (lists || runs > 0) return 0;
  fprintf(stderr, "usage: %s --ronde-list | --ronde-run SUITE | CASE\n", argv[0]);
  return 3;
}
