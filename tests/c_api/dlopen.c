/* SPDX-License-Identifier: Apache-2.0 */
/* The library, loaded by a program that was not linked with it. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ronde/ronde_c.h"

static void fail(const char* what, const char* why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

#define CHECK(condition) ((condition) ? (void)0 : fail("does not hold", #condition))

/* C has no conversion from a pointer to data to one to a function: POSIX copies the bits. */
static void find(void* library, const char* name, void* function) {
  void* const symbol = dlsym(library, name);
  if (symbol == NULL) fail(name, dlerror());
  memcpy(function, &symbol, sizeof(symbol));
}

/* Declares `name` with the type of the header's function, which it finds. */
#define FIND(name, function)  \
  __typeof__(function)* name; \
  find(library, #function, &name)

static void use(void* library, int expected_ranks) {
  FIND(last_error, ronde_last_error);
  FIND(init, ronde_init);
  FIND(size, ronde_size);
  FIND(barrier, ronde_barrier);
  FIND(wait, ronde_work_wait);
  FIND(free_work, ronde_work_free);
  FIND(shutdown, ronde_shutdown);
  int ranks = 0;
  ronde_work work = NULL;
  CHECK(size(RONDE_ALL_RANKS, &ranks) == RONDE_E_NOT_INITIALIZED);
  CHECK(strstr(last_error(), "ronde_init()") != NULL);
  CHECK(init(NULL) == RONDE_OK && size(RONDE_ALL_RANKS, &ranks) == RONDE_OK);
  CHECK(ranks == expected_ranks);
  CHECK(barrier(NULL, &work) == RONDE_OK);
  CHECK(wait(work, -1) == RONDE_OK && free_work(work) == RONDE_OK);
  CHECK(shutdown() == RONDE_OK);
}

/* Its path is the first argument, how many ranks there are the second. Closing it does not unload
 * it: what it does at exit is still there. */
int main(int argc, char** argv) {
  if (argc != 3) fail(argv[0], "expected the path of libronde_c.so, and the number of ranks");
  void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) fail(argv[1], dlerror());
  use(library, (int)strtol(argv[2], NULL, 10));
  CHECK(dlclose(library) == 0);
  CHECK(dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) == library);
  puts("loaded, used and closed");
  return 0;
}
