/* SPDX-License-Identifier: Apache-2.0 */
/* Runs each case on 1 to 3 ranks, which are forked and meet through files. Each becomes a fresh
 * process by exec, as ThreadSanitizer does not like threads in the child of a fork. */
#include <unistd.h>

#include "check.h"

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

static void run(const struct test_case* one) {
  char* const folder = getenv("TEST_STORE");
  if (folder != NULL) {
    start_rank(folder, atoi(getenv("TEST_RANK")), atoi(getenv("TEST_SIZE")));
    one->body();
    CHECK_OK(ronde_shutdown());
    return;
  }
  current = one;
  for (int size = one->least_ranks; size <= 3; ++size) fork_ranks(size, become_rank);
}

int main(int argc, char** argv) {
  static const struct suite suites[] = {
      {"bad_input", kBadInput}, {"capacity", kCapacity}, {"collectives", kCollectives},
      {"groups", kGroups},      {"sets", kSets},         {"works", kWorks},
      {"worlds", kWorlds}};
  setenv("RONDE_LOG_LEVEL", "warning", 1);
  setenv("PMI_SIZE", "7", 1); /* as under a foreign launcher: it must not matter */
  return run_suites(argc, argv, suites, sizeof(suites) / sizeof(suites[0]), run);
}
