/* SPDX-License-Identifier: Apache-2.0 */
/* The same cases without a launcher: ranks are forked, and meet through files. Each becomes a fresh
 * process by exec, as ThreadSanitizer does not like threads in the child of a fork. */
#include <unistd.h>

#include "rank.h"
#include "store.h"

static const struct test_case* current;

static void set_number(const char* name, int number) {
  char text[16];
  snprintf(text, sizeof(text), "%d", number);
  CHECK(setenv(name, text, 1) == 0);
}

static void become_rank(char* folder, int rank, int size) {
  set_number("TEST_RANK", rank);
  set_number("TEST_SIZE", size);
  CHECK(setenv("TEST_STORE", folder, 1) == 0);
  execl("/proc/self/exe", "rank", current->name, (char*)NULL);
  fail_check("exec", __FILE__, __LINE__);
}

static void run_rank(const struct test_case* one, char* folder) {
  const int rank = (int)strtol(getenv("TEST_RANK"), NULL, 10);
  const int size = (int)strtol(getenv("TEST_SIZE"), NULL, 10);
  const ronde_init_options options = store_options(folder, rank, size);
  CHECK_OK(ronde_init(&options));
  one->body();
  CHECK_OK(ronde_shutdown());
}

static void run(const struct test_case* one) {
  char* const folder = getenv("TEST_STORE");
  if (folder != NULL) {
    run_rank(one, folder);
    return;
  }
  current = one;
  for (int size = 1; size <= 3; ++size) {
    char tag[16];
    snprintf(tag, sizeof(tag), "[n%d]", size);
    if (one->tags[0] == '\0' || strstr(one->tags, tag) != NULL) fork_ranks(size, become_rank);
  }
}

int main(int argc, char** argv) {
  static const struct suite suites[] = RANK_SUITES;
  setenv("RONDE_LOG_LEVEL", "warning", 1);
  setenv("PMI_SIZE", "7", 1); /* as under a foreign launcher: it must not matter */
  return run_suites(argc, argv, suites, sizeof(suites) / sizeof(suites[0]), run, CHILD_EACH);
}
