/* SPDX-License-Identifier: Apache-2.0 */
/* Runs cases on ranks that are forked and meet through files. Each becomes a fresh process by exec,
 * as ThreadSanitizer does not like threads in the child of a fork. Takes the arguments of the
 * Catch2 programs: `--ronde-list` lists the cases for ctest, `--ronde-run SUITE` runs those of a
 * suite, a name runs that case. The first failure ends it. Each case may take
 * RONDE_TEST_DEADLINE_S. */
#include "check.h"

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

int (*const kNumbers[kNumberCount])(int*) = {ronde_local_rank, ronde_local_size, ronde_cross_rank,
                                             ronde_cross_size, ronde_is_homogeneous};

static const char* program;
static const struct test_case* current;

void fail_check(const char* what, const char* file, int line) {
  fprintf(stderr, "%s:%d: does not hold: %s\n  (last error: %s)\nFAILED %s: %s\n  alone: %s %s\n",
          file, line, what, ronde_last_error(), current->suite, current->name, program,
          current->name);
  exit(1);
}

static struct test_case* cases;
static struct test_case** end_of_cases = &cases;

void add_case(struct test_case* one) {
  *end_of_cases = one;
  end_of_cases = &one->next;
}

/* `size` is 0 for a process alone. */
static void become_rank(const struct test_case* one, const char* folder, int rank, int size) {
  const char place[] = {(char)('0' + rank), (char)('0' + size), '\0'};
  CHECK(setenv("TEST_PLACE", place, 1) == 0 && setenv("TEST_STORE", folder, 1) == 0);
  CHECK(setenv("RONDE_LOG_LEVEL", size > 0 ? "warning" : "off", 1) == 0);
  if (size > 0) setenv("PMI_SIZE", "7", 1); /* as under a foreign launcher: it must not matter */
  execl("/proc/self/exe", program, one->name, (char*)NULL);
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
  const char* const place = getenv("TEST_PLACE");
  const char* const deadline = getenv("RONDE_TEST_DEADLINE_S");
  if (place == NULL && one->least_ranks >= 0) {
    for (int size = one->least_ranks; size <= (one->least_ranks > 0 ? 3 : 0); ++size) {
      run_ranks(one, size);
    }
    return;
  }
  alarm(deadline == NULL ? 60 : (unsigned)strtoul(deadline, NULL, 10)); /* ends this rank */
  if (one->least_ranks > 0) {
    const ronde_init_options options = store_options(folder, place[0] - '0', place[1] - '0');
    CHECK_OK(ronde_init(&options));
  }
  one->body();
  if (one->least_ranks > 0) CHECK_OK(ronde_shutdown());
}

int main(int argc, char** argv) {
  const char* const wanted = argc > 1 ? argv[argc - 1] : "";
  const int lists = strcmp(wanted, "--ronde-list") == 0;
  int runs = 0;
  program = argv[0];
  for (current = cases; current != NULL; current = current->next) {
    if (lists) printf("%s\t%s\t%s\t\n", current->suite, current->name, current->name);
    if (strcmp(wanted, argc == 3 ? current->suite : current->name) != 0) continue;
    run(current);
    ++runs;
  }
  if (lists || runs > 0) return 0;
  fprintf(stderr, "usage: %s --ronde-list | --ronde-run SUITE | CASE\n", argv[0]);
  return 3;
}
