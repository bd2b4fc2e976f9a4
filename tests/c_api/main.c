/* SPDX-License-Identifier: Apache-2.0 */
/* Runs cases on ranks that are forked and meet through files. Each becomes a fresh process by exec,
 * as ThreadSanitizer does not like threads in the child of a fork. Takes the arguments of the
 * Catch2 programs: `--ronde-list` lists the cases for ctest, `--ronde-run SUITE` runs those of a
 * suite, a name runs that case. The first failure ends it. Each case may take
 * RONDE_TEST_DEADLINE_S. */
#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

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
  if (folder == NULL) {
    for (int size = one->least_ranks; size <= (one->least_ranks > 0 ? 3 : 0); ++size) {
      run_ranks(one, size);
    }
  } else if (one->least_ranks == 0) {
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
